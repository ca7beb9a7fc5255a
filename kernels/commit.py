"""Which masked positions a denoising step commits, and writing them: pure functions, all rows at once.

One order rules everywhere: higher confidence first, then lower position. A plain-loop
reference stands beside each selection.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rank_candidates(confidence: Tensor, candidates: Tensor) -> Tensor:
    """Rank the positions of each row: candidates first, by confidence, equal confidences by position.

    Args:
        confidence: [A, b] floating point, any range. NaN and -inf count as the least confident.
        candidates: [A, b] bool, positions that may be chosen.

    Returns:
        [A, b] int64, rank of every position in its row, 0 = first to commit; a row is a permutation of 0..b-1.

    Raises:
        ValueError: if the shapes differ or `candidates` is not bool.
    """
    _check(confidence, candidates)
    order = _score(confidence, candidates).sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def _score(confidence: Tensor, candidates: Tensor) -> Tensor:
    """What positions are ordered by: finite for candidates, -inf elsewhere."""
    lowest, highest = torch.finfo(confidence.dtype).min, torch.finfo(confidence.dtype).max
    # A candidate stays finite, so that it always precedes a position that is none.
    score = confidence.detach().nan_to_num(nan=lowest, neginf=lowest, posinf=highest)
    return score.masked_fill_(~candidates, float("-inf"))


def _best(confidence: Tensor, candidates: Tensor, counts: Tensor) -> Tensor:
    """The `counts` first positions of each row by rank: bool [A, b], candidates or not."""
    if counts.device.type == "cpu" and counts.numel() and confidence.shape[1] and int(counts.max()) <= 1:
        # One position per row needs no order. On other devices the look at the counts would wait for them.
        first = _score(confidence, candidates).argmax(1, keepdim=True)
        return torch.zeros_like(candidates).scatter_(1, first, counts.unsqueeze(1) > 0)
    return rank_candidates(confidence, candidates) < counts.unsqueeze(1)


def select_top(confidence: Tensor, candidates: Tensor, counts: Tensor) -> Tensor:
    """Select the `counts` most confident candidates of each row.

    Args:
        confidence: [A, b] floating point.
        candidates: [A, b] bool.
        counts: [A] integers; more than the candidates of a row means all of them, zero or less means none.

    Returns:
        [A, b] bool, exactly min(max(counts, 0), candidates) True per row, never outside `candidates`. The cap keeps a
        step from overwriting tokens that are already committed.

    Raises:
        ValueError: on wrong shapes or dtypes.

    Source: LLaDA `generate.py`; JetAstra/SDAR `generate.py` low_confidence_static, with k capped
    (the published SDAR sampler does not).
    """
    _check(confidence, candidates)
    _check_counts("counts", counts, confidence)
    return _best(confidence, candidates, counts) & candidates


def select_threshold(
    confidence: Tensor, candidates: Tensor, threshold: float | Tensor, *, strict: bool, at_least: Tensor
) -> Tensor:
    """Select every candidate above a threshold, and at least the `at_least` most confident ones.

    Args:
        confidence: [A, b] floating point.
        candidates: [A, b] bool.
        threshold: one number, or [A] with one per row; compared in the dtype of `confidence`.
        strict: True: confidence > threshold (SDAR, LLaDA2); False: confidence >= threshold (Fast-dLLM).
        at_least: [A] integers, capped at the candidates of the row.

    Returns:
        [A, b] bool, never True outside `candidates`.

    Raises:
        ValueError: on wrong shapes or dtypes.

    Source: JetAstra/SDAR `generate.py` low_confidence_dynamic; Fast-dLLM (arXiv 2505.22618).
    """
    _check(confidence, candidates)
    _check_counts("at_least", at_least, confidence)
    if isinstance(threshold, Tensor):
        if threshold.shape != confidence.shape[:1]:
            raise ValueError(
                f"threshold must be one number or a tensor [A] = [{confidence.shape[0]}], got {tuple(threshold.shape)}"
            )
        threshold = threshold.to(confidence.dtype).unsqueeze(1)
    above = confidence > threshold if strict else confidence >= threshold
    return (above | _best(confidence, candidates, at_least)) & candidates


def write(ids: Tensor, selected: Tensor, tokens: Tensor) -> Tensor:
    """Put `tokens` where `selected`, keep `ids` elsewhere; the arguments are not changed.

    Args:
        ids: [A, b] int64, the canvas.
        selected: [A, b] bool.
        tokens: [A, b] int64, the proposed token of every position.

    Returns:
        [A, b] int64, a new tensor.

    Raises:
        ValueError: if shapes or dtypes differ.
    """
    if not ids.shape == selected.shape == tokens.shape or selected.dtype != torch.bool or ids.dtype != tokens.dtype:
        raise ValueError(
            "ids, selected and tokens must have one shape, selected must be bool, ids and tokens one dtype; got "
            f"{tuple(ids.shape)} {ids.dtype}, {tuple(selected.shape)} {selected.dtype}, "
            f"{tuple(tokens.shape)} {tokens.dtype}"
        )
    return torch.where(selected, tokens, ids)


def select_top_reference(confidence: Tensor, candidates: Tensor, counts: Tensor) -> Tensor:
    """The result of `select_top`, one row and one position at a time.

    Args:
        confidence: [A, b] floating point.
        candidates: [A, b] bool.
        counts: [A] integers.

    Returns:
        [A, b] bool.
    """
    selected = torch.zeros_like(candidates)
    for row, count in enumerate(counts.tolist()):
        for position in ordered_reference(confidence[row].tolist(), candidates[row].tolist())[: max(count, 0)]:
            selected[row, position] = True
    return selected


def select_threshold_reference(
    confidence: Tensor, candidates: Tensor, threshold: float | Tensor, *, strict: bool, at_least: Tensor
) -> Tensor:
    """The result of `select_threshold`, one row and one position at a time.

    Args:
        confidence: [A, b] floating point.
        candidates: [A, b] bool.
        threshold: one number, or [A].
        strict: whether equality is excluded.
        at_least: [A] integers.

    Returns:
        [A, b] bool.
    """
    limits = torch.as_tensor(threshold).to(confidence.dtype).expand(confidence.shape[0]).tolist()
    selected = torch.zeros_like(candidates)
    for row, (limit, count) in enumerate(zip(limits, at_least.tolist(), strict=True)):
        values = confidence[row].tolist()
        for place, position in enumerate(ordered_reference(values, candidates[row].tolist())):
            is_above = values[position] > limit if strict else values[position] >= limit
            if is_above or place < count:
                selected[row, position] = True
    return selected


def ordered_reference(values: list[float], allowed: list[bool]) -> list[int]:
    """Allowed positions of a row in the order of `rank_candidates`.

    Args:
        values: confidence of every position.
        allowed: whether it is a candidate.
    """

    def key(position: int) -> tuple[float, int]:
        value = values[position]
        return (float("inf") if value != value else -value, position)

    return sorted((p for p in range(len(values)) if allowed[p]), key=key)


def _check(confidence: Tensor, candidates: Tensor) -> None:
    if confidence.dim() != 2 or confidence.shape != candidates.shape:
        raise ValueError(
            f"confidence and candidates must both be [A, b], got {tuple(confidence.shape)} and "
            f"{tuple(candidates.shape)}; a single row is [1, b]"
        )
    if candidates.dtype != torch.bool or not confidence.is_floating_point():
        raise ValueError(
            f"confidence must be floating point and candidates bool, got {confidence.dtype} and {candidates.dtype}"
        )


def _check_counts(name: str, counts: Tensor, confidence: Tensor) -> None:
    if counts.shape != confidence.shape[:1] or counts.is_floating_point():
        raise ValueError(
            f"{name} must be integers [A] = [{confidence.shape[0]}], one per row, got {tuple(counts.shape)} "
            f"{counts.dtype}"
        )
