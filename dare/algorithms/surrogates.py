"""What surrogates of few forwards share: rows of masked completions, and log-probabilities back at their tokens."""

from __future__ import annotations

import torch
from dare_bench.dare.algorithms.base import Batch, Context, Rows
from dare_bench.dare.diffusion import block, corruption
from torch import Tensor


def masked_completion(
    batch: Batch, context: Context, counted: Tensor, *, prompt_mask: float = 0.0, weight: float = 1.0
) -> Rows:
    """One row per response whose completion is fully masked.

    Under full attention the whole completion is masked. On block families every block is fully masked given the clean
    earlier blocks, in the doubled layout: a block model never meets a completion whose later blocks are masked beside
    earlier ones.

    Args:
        batch: prompts and responses.
        context: seeds the prompt masks (equal for old, reference and policy of one inner iteration).
        counted: bool [B, S], scored positions.
        prompt_mask: probability with which each prompt token is masked; block families hide it in the clean half too.
        weight: of every position.

    Returns:
        Rows [B, ...] of draw 0.

    Source:
        dllm-reasoning/d1 `diffu_grpo_trainer.py`.
    """
    clean = corruption.apply_mask(batch.ids, masked_prompt(batch, context, prompt_mask), batch.mask_token_id)
    noisy = corruption.apply_mask(clean, batch.response, batch.mask_token_id)
    weights = torch.full(batch.ids.shape, weight, dtype=torch.float64)
    return block.rows_from(batch, noisy, counted, weights, clean=clean)


def masked_prompt(batch: Batch, context: Context, probability: float, stream: str = "prompt_mask") -> Tensor:
    """Each prompt token masked with a probability, bool [B, S].

    Args:
        batch: prompts and responses.
        context: seeds the draws.
        probability: of each token.
        stream: name of the draws; one per Monte-Carlo draw.
    """
    prompt = batch.real & ~batch.response
    level = torch.full((len(batch.ids),), probability, dtype=torch.float64)
    return corruption.bernoulli_mask(context.seeds(stream, batch), level, prompt)


def by_place(values: Tensor, rows: Rows, slot: Tensor, slots: int) -> Tensor:
    """Values of rows summed at their places in the sequence; what is not scored adds nothing.

    Args:
        values: [N, S].
        rows: `mask` and `position_ids` are read.
        slot: int64 [N], where a row's values go, for example its owner.
        slots: number of them (M).

    Returns:
        [M, W]; W = last scored place + 1.
    """
    # Not index arithmetic of padding: a place behind the last scored one must not widen the result.
    width = int(torch.where(rows.mask, rows.position_ids, 0).max()) + 1 if len(rows) else 1
    index = torch.where(rows.mask, slot[:, None] * width + rows.position_ids, 0)
    kept = torch.where(rows.mask, values, torch.zeros_like(values))
    return values.new_zeros(slots * width).index_add(0, index.flatten(), kept.flatten()).view(slots, width)
