"""Monte-Carlo likelihood estimates of diffusion models: which positions are masked, and how the draws add up."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dare_bench.dare.algorithms.base import Batch, Context, Rows
from dare_bench.dare.diffusion import block, corruption
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


def stratified_counts(first: Tensor, total: Tensor, draws: int, *, lowest: int = 1) -> Tensor:
    """Mask counts of several draws, spread evenly over lowest..n from one random start.

    Args:
        first: int64 [B], uniform on lowest..n.
        total: int64 [B], n, tokens of the response.
        draws: counts per row (m).
        lowest: 1, or 0 for the (n + 1)-count estimator.

    Sums that end in one half are rounded to even numbers, as published: draws whose offset j w / m ends so prefer even
    counts a little.

    Returns:
        int64 [B, m]: ``((round(first + j w / m) - lowest) mod w) + lowest`` with w = n + 1 - lowest counts in all, the sum
        rounded half to even. 0 where n is 0.

    Source:
        ML-GSAI/LLaDA `get_log_likelihood.py` (lowest 1); ML-GSAI/ESPO `espo_trainer.py` (lowest 0).
    """
    steps = torch.arange(draws, dtype=torch.float64)
    width = (total[:, None] + 1 - lowest).clamp(min=1)
    spread = (first[:, None] + steps * width / draws).round().long()
    return torch.where(total[:, None] > 0, (spread - lowest).remainder(width) + lowest, 0)


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


def stratified_masks(
    context: Context,
    batch: Batch,
    allowed: Tensor,
    draws: int,
    *,
    strata: int | None = None,
    lowest: int = 1,
    stream: str = "elbo",
) -> Iterator[tuple[Tensor, Tensor]]:
    """Masks of several draws: stratified counts, positions uniform without replacement.

    Args:
        context: gives the seeds.
        batch: whose responses are masked.
        allowed: bool [B, S], positions that may be masked.
        draws: masks per response (m).
        strata: unlike counts; each serves draws / strata masks (default one each).
        lowest: lowest count, 1 or 0.
        stream: name of the draws; unlike names are independent.

    Yields:
        masked bool [B, S] and counts int64 [B], draw by draw.
    """
    total = allowed.sum(1)
    levels = draws if strata is None else strata
    first = uniform_counts(context.seeds(f"{stream} count", batch), total, lowest=lowest)
    counts = stratified_counts(first, total, levels, lowest=lowest)
    for draw in range(draws):
        chosen = counts[:, draw * levels // draws]
        yield mask_of_count(context.seeds(f"{stream} mask {draw}", batch), chosen, allowed), chosen


def count_weights(counts: Tensor, total: Tensor, *, lowest: int = 1) -> Tensor:
    """Weight of a masked token such that the weighted sum of its log-probabilities estimates the ELBO without bias.

    Args:
        counts: int64 [B], masked tokens (k), uniform on lowest..n.
        total: int64 [B], n.
        lowest: 1 gives n / k; 0 gives (n + 1) / k.

    Returns:
        float64 [B, 1]; 0 where k is 0.
    """
    weight = (total + 1 - lowest).double() / counts.clamp(min=1)
    return torch.where(counts > 0, weight, 0.0)[:, None]


def elbo_rows(batch: Batch, masked: Tensor, weight: Tensor, draw: int, counted: Tensor) -> Rows:
    """Rows that score the masked tokens; response tokens that do not count stay masked, so that they give nothing away.

    Args:
        batch: clean responses.
        masked: bool [B, S], scored.
        weight: float, broadcastable to [B, S].
        draw: Monte-Carlo index.
        counted: bool [B, S], response positions that count.
    """
    hidden = masked | (batch.response & ~counted)
    noisy = corruption.apply_mask(batch.ids, hidden, batch.mask_token_id)
    return block.rows_from(batch, noisy, masked, weight.expand(masked.shape), draw=draw)


def coupled_rows(
    batch: Batch, masked: Tensor, counts: Tensor, draw: int, counted: Tensor, *, coupled: bool = True
) -> Iterator[Rows]:
    """Rows of one (n + 1)-count draw: the mask and its complement, each with half of the weight, or the mask alone.

    Args:
        batch: clean responses.
        masked: bool [B, S], k of the n counted positions.
        counts: int64 [B], k, uniform on 0..n.
        draw: Monte-Carlo index of both.
        counted: bool [B, S], response positions that count.
        coupled: score the complement too: every token once, lower variance.

    Source:
        arXiv 2512.03759; ML-GSAI/ESPO `espo_trainer.py`.
    """
    total = counted.sum(1)
    share = 0.5 if coupled else 1.0
    yield elbo_rows(batch, masked, share * count_weights(counts, total, lowest=0), draw, counted)
    if coupled:
        rest = corruption.complement(masked, counted)
        yield elbo_rows(batch, rest, share * count_weights(total - counts, total, lowest=0), draw, counted)


def combine(by_draw: Tensor, weights: Tensor | None = None) -> Tensor:
    """One estimate per response from those of its draws.

    Args:
        by_draw: [B, m].
        weights: [m] (of a quadrature, or of time steps); null = the mean.

    Returns:
        [B].
    """
    return by_draw.mean(1) if weights is None else by_draw @ weights.to(by_draw.dtype)


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
