"""Masks that imitate semi-autoregressive decoding under full attention: one block in part, all behind it whole."""

from __future__ import annotations

import torch
from dare_bench.dare.algorithms import estimators
from dare_bench.dare.algorithms.base import Batch, Context
from dare_bench.dare.diffusion import corruption
from dare_bench.dare.randomness import uniform
from torch import Tensor


def block_order(seeds: list[int], batch: Batch, counted: Tensor, mask_block: int, draws: int) -> Tensor:
    """Blocks that the draws of a response choose, int64 [B, draws].

    A random permutation of all blocks of the response, modulo those that hold counted tokens: the draws share no block
    before every one had its turn, if all blocks count.

    Args:
        seeds: [B].
        batch: prompts and responses.
        counted: bool [B, S], positions that count; the first of each response without a gap.
        mask_block: tokens of a block.
        draws: blocks per response.

    Source:
        facebookresearch/SPG `spg_trainer.py`.
    """
    blocks = _blocks(batch.response.sum(1), mask_block).clamp(min=1)
    filled = _blocks(counted.sum(1), mask_block).clamp(min=1)
    keys = uniform(seeds, int(blocks.max()))
    keys = keys.masked_fill(torch.arange(keys.shape[1]) >= blocks[:, None], torch.inf)
    turn = torch.arange(draws) % blocks[:, None]
    return keys.argsort(dim=1, stable=True).gather(1, turn) % filled[:, None]


def draw(
    batch: Batch,
    counted: Tensor,
    context: Context,
    number: int,
    kind: str,
    chosen: Tensor,
    *,
    mask_block: int,
    ahead: float,
    shares: tuple[float, float],
) -> Tensor:
    """Masked positions of the responses in one draw, bool [B, S].

    Args:
        batch: prompts and responses.
        counted: bool [B, S], positions that count.
        context: seeds the draws.
        number: of the draw.
        kind: ``all``; ``random`` = a random number of counted tokens anywhere; ``block_all`` = the chosen block and all
            behind it; ``block_random`` = a random number of counted tokens of that block, and all behind it. Positions
            that do not count are always masked.
        chosen: int64 [B], of `block_order`.
        mask_block: tokens of a block.
        ahead: probability of each token ahead of the chosen block.
        shares: lowest and highest share of the tokens that a random number is drawn from; at least one.
    """
    response = batch.response
    if kind == "all":
        return response
    seeds = context.seeds(f"mask {number}", batch)
    if kind == "random":
        return _some(seeds, context.seeds(f"count {number}", batch), counted, shares) | (response & ~counted)
    place = torch.arange(batch.ids.shape[1]) - batch.prompt_lengths[:, None]
    of = place.div(mask_block, rounding_mode="floor")
    own = (of == chosen[:, None]) & counted
    behind = response & ((of > chosen[:, None]) | ~counted)
    level = torch.full((len(seeds),), ahead, dtype=torch.float64)
    before = corruption.bernoulli_mask(context.seeds(f"ahead {number}", batch), level, counted & (of < chosen[:, None]))
    if kind == "block_random":
        own = _some(seeds, context.seeds(f"count {number}", batch), own, shares)
    return own | behind | before


def _blocks(tokens: Tensor, mask_block: int) -> Tensor:
    return (tokens + mask_block - 1).div(mask_block, rounding_mode="floor")


def _some(seeds: list[int], count_seeds: list[int], allowed: Tensor, shares: tuple[float, float]) -> Tensor:
    """A random number of allowed positions, uniform on max(1, floor(low n))..floor(high n)."""
    total = allowed.sum(1)
    low, high = ((total * share).floor().long().clamp(min=1) for share in shares)
    drawn = (uniform(count_seeds, 1)[:, 0] * (high - low + 1)).long()
    return estimators.mask_of_count(seeds, torch.minimum(low + torch.minimum(drawn, high - low), total), allowed)
