"""The results of `select`, one row and one position at a time: what its tests compare with."""

from __future__ import annotations

import math

import torch
from dare_bench.kernels.commit import ordered_reference
from torch import Tensor


def select_factor(
    confidence: Tensor, candidates: Tensor, factor: float, *, commits_failing_last: bool = False
) -> Tensor:
    """As `select.select_factor`, after the published loop."""
    selected = torch.zeros_like(candidates)
    for row, (values, allowed) in enumerate(_rows(confidence, candidates)):
        order = ordered_reference(values, allowed)
        count = min(len(order), 1)
        while 0 < count < len(order) and values[order[count]] >= 1 - factor / (count + 2):
            count += 1
        if commits_failing_last and count and count == len(order) - 1:
            count += 1
        selected[row, order[:count]] = True
    return selected


def select_entropy_sum(entropy: Tensor, candidates: Tensor, threshold: float) -> Tensor:
    """As `select.select_entropy_sum`."""
    selected = torch.zeros_like(candidates)
    for row, (values, allowed) in enumerate(_rows(entropy, candidates)):
        total = 0.0
        for place, position in enumerate(ordered_reference([-value for value in values], allowed)):
            total += values[position]
            if place and not total < threshold:
                break
            selected[row, position] = True
    return selected


def select_entropy_bound(entropy: Tensor, candidates: Tensor, gamma: float, *, error: Tensor | None = None) -> Tensor:
    """As `select.select_entropy_bound`."""
    selected = torch.zeros_like(candidates)
    errors = (entropy if error is None else error).tolist()
    for row, (values, allowed) in enumerate(_rows(entropy, candidates)):
        taken: list[float] = []
        for position in ordered_reference([-value for value in errors[row]], allowed):
            taken.append(values[position])
            if len(taken) > 1 and not sum(taken) - max(taken) <= gamma:
                break
            selected[row, position] = True
    return selected


def select_hierarchy(confidence: Tensor, candidates: Tensor, threshold: float, low_threshold: float) -> Tensor:
    """As `select.select_hierarchy`: walk over the row, close a run at each gap."""
    selected = torch.zeros_like(candidates)
    for row, (values, allowed) in enumerate(_rows(confidence, candidates)):
        run: list[int] = []
        for position in range(len(values) + 1):
            if position < len(values) and allowed[position]:
                run.append(position)
                if values[position] > threshold:
                    selected[row, position] = True
                continue
            if run:
                best = _best(values, run)
                if values[best] > low_threshold:
                    selected[row, best] = True
            run = []
        everywhere = [position for position, is_allowed in enumerate(allowed) if is_allowed]
        if everywhere:
            selected[row, _best(values, everywhere)] = True
    return selected


def select_first(candidates: Tensor, counts: Tensor) -> Tensor:
    """As `select.select_first`."""
    selected = torch.zeros_like(candidates)
    for row, count in enumerate(counts.tolist()):
        for position in range(candidates.shape[1]):
            if candidates[row, position] and count > 0:
                selected[row, position] = True
                count -= 1
    return selected


def draw_without_replacement(scores: Tensor, candidates: Tensor, uniforms: Tensor, counts: Tensor) -> Tensor:
    """As `select.draw_without_replacement`."""
    selected = torch.zeros_like(candidates)
    for row, (values, allowed) in enumerate(_rows(scores.double(), candidates)):
        keys = [value - math.log(-math.log(u)) for value, u in zip(values, uniforms[row].tolist(), strict=True)]
        selected[row, ordered_reference(keys, allowed)[: max(int(counts[row]), 0)]] = True
    return selected


def _rows(values: Tensor, candidates: Tensor) -> list[tuple[list[float], list[bool]]]:
    return list(zip(values.tolist(), candidates.tolist(), strict=True))


def _best(values: list[float], positions: list[int]) -> int:
    return ordered_reference(values, [position in positions for position in range(len(values))])[0]
