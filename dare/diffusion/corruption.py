"""Which tokens are masked: pure functions of tensors and per-row seeds."""

from __future__ import annotations

import torch
from dare_bench.dare.randomness import uniform
from torch import Tensor

#: Lowest noise level: p = (1 - EPS) * u + EPS (LLaDA guideline).
EPS = 1e-3


def noise_levels(seeds: list[int], *, low: float = 0.0, high: float = 1.0, eps: float = EPS) -> Tensor:
    """One masking probability per row.

    Args:
        seeds: [B] row seeds.
        low, high: range of the uniform draw.
        eps: floor, so that the weight 1/p stays finite.

    Returns:
        float64 [B] in (0, 1].

    Source:
        ML-GSAI/LLaDA guideline: p = (1 - eps) u + eps.
    """
    u = uniform(seeds, 1)[:, 0]
    return (1 - eps) * (low + (high - low) * u) + eps


def even_levels(count: int, *, low: float = 0.0, high: float = 1.0, eps: float = EPS) -> Tensor:
    """Masking probabilities on an even grid, one per row: the midpoints of `count` equal parts of the range.

    Losses that are compared over a run use it: drawn levels would hide progress behind their noise.

    Args:
        count: rows.
        low, high, eps: as in `noise_levels`.

    Returns:
        float64 [count].
    """
    u = (torch.arange(count, dtype=torch.float64) + 0.5) / max(count, 1)
    return (1 - eps) * (low + (high - low) * u) + eps


def block_noise_levels(
    seeds: list[int], blocks: int, *, low: float, high: float, eps: float = EPS, stratified_seed: int | None = None
) -> Tensor:
    """One masking probability per block.

    Args:
        seeds: [B] row seeds.
        blocks: blocks per row (n).
        low, high, eps: as in `noise_levels`.
        stratified_seed: if given, draws are stratified over all B x n blocks: u_k = (k + u) / N, randomly assigned.

    Returns:
        float64 [B, n].

    Source:
        BD3-LM (arXiv 2503.09573), low-discrepancy sampler.
    """
    if stratified_seed is None:
        u = uniform(seeds, blocks)
    else:
        count = len(seeds) * blocks
        draws = uniform([stratified_seed], count + 1)[0]
        order = draws[:count].argsort()
        u = torch.empty(count, dtype=torch.float64)
        u[order] = (torch.arange(count, dtype=torch.float64) + draws[count]) / count
        u = u.view(len(seeds), blocks)
    return (1 - eps) * (low + (high - low) * u) + eps


def bernoulli_mask(seeds: list[int], probability: Tensor, allowed: Tensor) -> Tensor:
    """Mask each allowed position independently.

    Args:
        seeds: [B] row seeds.
        probability: [B] or [B, S] masking probabilities.
        allowed: bool [B, S], positions that may be masked.

    Returns:
        bool [B, S], a subset of `allowed`.
    """
    p = probability if probability.dim() == 2 else probability[:, None]
    return (uniform(seeds, allowed.shape[1]) < p) & allowed


def complement(masked: Tensor, allowed: Tensor) -> Tensor:
    """The other half of a complementary pair: the two partition `allowed` (LLaDA2.0 SFT).

    Args:
        masked, allowed: bool [B, S].
    """
    return allowed & ~masked


def apply_mask(ids: Tensor, masked: Tensor, mask_token_id: int) -> Tensor:
    """Replace masked positions by the mask id.

    Args:
        ids: int64 [B, S].
        masked: bool [B, S].
        mask_token_id: mask id.
    """
    return torch.where(masked, torch.full_like(ids, mask_token_id), ids)


def treat_end_as_one(masked: Tensor, ids: Tensor, lengths: Tensor, eos_token_id: int) -> Tensor:
    """Let all trailing end tokens of a row copy the mask state of the first of them.

    Args:
        masked: bool [B, S].
        ids: int64 [B, S] clean ids.
        lengths: [B] row lengths.
        eos_token_id: the end token.

    Source:
        DreamLM/Dream-Coder, option `treat_eos_as_one`.
    """
    columns = torch.arange(ids.shape[1])
    inside = columns < lengths[:, None]
    trailing = ((ids == eos_token_id) | ~inside).flip(1).long().cumprod(1).flip(1).bool() & inside
    first = torch.where(trailing.any(1), trailing.long().argmax(1), 0)
    state = masked.gather(1, first[:, None])
    return torch.where(trailing, state, masked)
