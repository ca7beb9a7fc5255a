"""Which masked positions a denoising step commits, rules beyond counts and thresholds: pure functions, all rows at once.

The order is that of `commit`: better first, then lower position. `select_reference` has the plain loops.
"""

from __future__ import annotations

import torch
from dare_bench.kernels.commit import rank_candidates, select_top
from torch import Tensor


def select_factor(
    confidence: Tensor, candidates: Tensor, factor: float, *, commits_failing_last: bool = False
) -> Tensor:
    """Select the n best candidates, n the largest with c_r >= 1 - factor / (r + 1) for every rank r = 2 ... n.

    Args:
        confidence: [A, b] probabilities.
        candidates: [A, b] bool.
        factor: positive.
        commits_failing_last: select all when the only candidate that fails is the last one, as published.

    Returns:
        [A, b] bool, at least the best of every row that has candidates.

    Raises:
        ValueError: on wrong shapes or dtypes.

    Source: Fast-dLLM (arXiv 2505.22618), theorem 1; `commits_failing_last` is what its `get_transfer_index_dynamic`
    does.
    """
    rank = rank_candidates(confidence, candidates)
    masks = candidates.sum(1)
    places = torch.arange(1, confidence.shape[1] + 1, device=confidence.device)
    limits = 1 - factor / (places.double() + 1)
    passes = _sorted(confidence.double(), rank) >= limits
    passes[:, :1] = True
    counts = _leading(passes & (places <= masks[:, None]))
    if commits_failing_last:
        counts = torch.where((counts >= 1) & (counts == masks - 1), masks, counts)
    return (rank < counts[:, None]) & candidates


def select_entropy_sum(entropy: Tensor, candidates: Tensor, threshold: float) -> Tensor:
    """Select candidates by rising entropy while the sum of their entropies is below a threshold, at least one.

    Args:
        entropy: [A, b], nats.
        candidates: [A, b] bool.
        threshold: positive.

    Returns:
        [A, b] bool, at least one of every row that has candidates.

    Raises:
        ValueError: on wrong shapes or dtypes.

    Source: JetAstra/SDAR `entropy_bounded`, as its engine JetEngine computes it.
    """
    rank = rank_candidates(-entropy, candidates)
    passes = _sorted(entropy.double(), rank).cumsum(1) < threshold
    passes[:, :1] = True
    return (rank < _leading(passes)[:, None]) & candidates


def select_entropy_bound(entropy: Tensor, candidates: Tensor, gamma: float, *, error: Tensor | None = None) -> Tensor:
    """Select the longest list of candidates U, best first, with sum(entropy of U) - max(entropy of U) <= gamma.

    Args:
        entropy: [A, b], nats.
        candidates: [A, b] bool.
        gamma: not negative.
        error: [A, b], the order, lowest first; null = `entropy`.

    Returns:
        [A, b] bool, at least one of every row that has candidates.

    Raises:
        ValueError: on wrong shapes or dtypes.

    Source: EB-sampler (arXiv 2505.24857).
    """
    rank = rank_candidates(-(entropy if error is None else error), candidates)
    ordered = _sorted(entropy.double(), rank)
    passes = ordered.cumsum(1) - ordered.cummax(1).values <= gamma
    passes[:, :1] = True
    return (rank < _leading(passes)[:, None]) & candidates


def select_hierarchy(confidence: Tensor, candidates: Tensor, threshold: float, low_threshold: float) -> Tensor:
    """Select the best of every run of neighbouring candidates, all confident ones, and the best of the row.

    Args:
        confidence: [A, b].
        candidates: [A, b] bool; runs are maximal.
        threshold: above it (>) every candidate is selected.
        low_threshold: above it (>) the best of a run is selected.

    Returns:
        [A, b] bool, at least the best of every row that has candidates.

    Raises:
        ValueError: on wrong shapes or dtypes.

    Source: dInfer (arXiv 2510.08666) `HierarchyDecoder`.
    """
    rank = rank_candidates(confidence, candidates)
    length = confidence.shape[1]
    begins = candidates.clone()
    begins[:, 1:] &= ~candidates[:, :-1]
    run = torch.where(candidates, begins.cumsum(1) - 1, length)  # the last slot takes everything outside
    best = torch.full((len(rank), length + 1), length, dtype=rank.dtype, device=rank.device)
    best.scatter_reduce_(1, run, rank, "amin")
    is_best = rank == best.gather(1, run)
    return ((is_best & (confidence > low_threshold)) | (confidence > threshold) | (rank == 0)) & candidates


def select_first(candidates: Tensor, counts: Tensor) -> Tensor:
    """Select the `counts` first candidates of each row.

    Args:
        candidates: [A, b] bool.
        counts: [A] integers.

    Returns:
        [A, b] bool, exactly min(max(counts, 0), candidates) True per row.

    Raises:
        ValueError: on wrong shapes or dtypes.

    Source: JetAstra/SDAR `sequential`, with the count capped.
    """
    return select_top(torch.zeros(candidates.shape, device=candidates.device), candidates, counts)


def select_bernoulli(uniforms: Tensor, candidates: Tensor, probability: Tensor) -> Tensor:
    """Select every candidate on its own with a probability.

    Args:
        uniforms: [A, b] in [0, 1).
        candidates: [A, b] bool.
        probability: [A], of the candidates of a row; 1 selects all of them.

    Returns:
        [A, b] bool; a row may select none.

    Source: Dream `generation_utils.py`, ``origin``.
    """
    return (uniforms < probability[:, None]) & candidates


def draw_without_replacement(scores: Tensor, candidates: Tensor, uniforms: Tensor, counts: Tensor) -> Tensor:
    """Draw positions one after another with probability proportional to exp(score) among those left.

    Args:
        scores: [A, b] floating point, logarithms of weights up to a constant per row.
        candidates: [A, b] bool.
        uniforms: [A, b] float64 in (0, 1), one draw per position.
        counts: [A] integers.

    Returns:
        [A, b] bool, exactly min(max(counts, 0), candidates) True per row.

    Raises:
        ValueError: on wrong shapes or dtypes.

    Source: Kool, van Hoof, Welling, "Stochastic Beams and Where to Find Them" (arXiv 1903.06059): the best of
    score + Gumbel noise are such a draw.
    """
    return select_top(scores.double() - (-uniforms.double().log()).log(), candidates, counts)


def _sorted(values: Tensor, rank: Tensor) -> Tensor:
    """Values of each row in the order of their ranks."""
    return torch.empty_like(values).scatter_(1, rank, values)


def _leading(passes: Tensor) -> Tensor:
    """How many entries are True before the first False: int64 [A]."""
    return passes.to(torch.int64).cumprod(1).sum(1)
