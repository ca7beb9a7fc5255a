"""Monte-Carlo likelihood estimates of diffusion models: which positions are masked, and how the draws add up."""

from __future__ import annotations

import torch
from dare_bench.dare.algorithms.base import Rows
from dare_bench.dare.randomness import uniform
from torch import Tensor


def mask_of_count(seeds: list[int], counts: Tensor, allowed: Tensor) -> Tensor:
    """Mask exactly so many allowed positions per row, uniformly without replacement.

    Args:
        seeds: [B] row seeds.
        counts: int64 [B], at most the number of allowed positions.
        allowed: bool [B, S].

    Returns:
        bool [B, S].
    """
    keys = uniform(seeds, allowed.shape[1]).masked_fill(~allowed, torch.inf)
    rank = keys.argsort(dim=1, stable=True).argsort(1)
    return (rank < counts[:, None]) & allowed


def stratified_counts(first: Tensor, total: Tensor, draws: int) -> Tensor:
    """Mask counts of several draws, spread evenly over 1..n from one random start.

    Args:
        first: int64 [B], uniform on 1..n.
        total: int64 [B], n, tokens of the response.
        draws: counts per row (m).

    Returns:
        int64 [B, m]: ``((round(first + j n / m) - 1) mod n) + 1``, the sum rounded half to even. 0 where n is 0.

    Source:
        ML-GSAI/LLaDA `get_log_likelihood.py`.
    """
    steps = torch.arange(draws, dtype=torch.float64)
    n = total[:, None].clamp(min=1)
    spread = (first[:, None] + steps * n / draws).round().long()
    return torch.where(total[:, None] > 0, (spread - 1).remainder(n) + 1, 0)


def uniform_counts(seeds: list[int], total: Tensor, *, lowest: int = 1) -> Tensor:
    """One count per row, uniform on lowest..n (0 where n is 0).

    Args:
        seeds: [B] row seeds.
        total: int64 [B], n.
        lowest: 1, or 0 for the (n + 1)-count estimator.
    """
    u = uniform(seeds, 1)[:, 0]
    width = (total + 1 - lowest).clamp(min=1)
    drawn = lowest + torch.minimum((u * width).long(), width - 1)
    return torch.where(total > 0, drawn, 0)


def sum_by_draw(new: Tensor, rows: Rows, responses: int, draws: int) -> Tensor:
    """Weighted log-probabilities summed over the rows of each (response, draw).

    Args:
        new: [N, S, K]; the first candidate is read.
        rows: `owner`, `draw`, `mask`, `weight` are read.
        responses: B.
        draws: m.

    Returns:
        [B, m].
    """
    weight = torch.where(rows.mask, rows.weight, 0.0).to(new.dtype)
    per_row = (weight * new[..., 0]).sum(1)
    out = new.new_zeros(responses * draws).index_add(0, rows.owner * draws + rows.draw, per_row)
    return out.view(responses, draws)
