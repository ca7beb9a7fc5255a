"""Selection by the probability of the chosen token. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dare_bench.dare.decoding.options import count, flag, number, or_null, share
from dare_bench.dare.decoding.selectors import BlockView, selector
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from dare_bench.kernels import commit, select
    from torch import Tensor
else:
    torch = lazy_import("torch")
    commit = lazy_import("dare_bench.kernels.commit")
    select = lazy_import("dare_bench.kernels.select")


@selector("low_confidence")
def low_confidence(view: BlockView) -> Tensor:
    """Commit the most confident positions, as many as the scheduler asks for.

    Source: LLaDA `low_confidence` remasking; SDAR `low_confidence_static` with the count capped at the masks left.
    """
    return commit.select_top(view.confidence, view.candidates, view.quota)


@selector("threshold", threshold=share(), within_quota=flag(), at_least=or_null(count(example=1)))
def threshold(view: BlockView, *, threshold: float, within_quota: bool, at_least: int | None) -> Tensor:
    """Commit every position above a confidence threshold, and always the best ones up to the guaranteed number.

    Args:
        view: block.
        threshold: compared with > in block families, else with >=.
        within_quota: only the best positions, as many as the scheduler asks for, may be committed.
        at_least: guaranteed number; null = what the family guarantees.

    Source: Fast-dLLM (arXiv 2505.22618) parallel decoding, its Dream sampler `within_quota`; SDAR
    `low_confidence_dynamic`; LLaDA2.1 `num_to_transfer` is `at_least`; dInfer's `min(max c, threshold)`.
    """
    guaranteed = view.guaranteed if at_least is None else torch.full_like(view.guaranteed, at_least)
    allowed = view.candidates
    if within_quota:
        allowed = commit.select_top(view.confidence, allowed, view.quota)
    return commit.select_threshold(view.confidence, allowed, threshold, strict=view.strict, at_least=guaranteed)


@selector("factor", factor=number("a positive number", lambda value: value > 0, example=1.0))
def factor(view: BlockView, *, factor: float) -> Tensor:
    """Commit n positions, the most for which every rank r from 2 to n has confidence >= 1 - factor / (r + 1).

    Source: Fast-dLLM (arXiv 2505.22618), theorem 1. The published loop also commits the last candidate when it is the
    one that fails; so does ``compat.factor_last``.
    """
    last_fails = "factor_last" in view.compat
    return select.select_factor(view.confidence, view.candidates, factor, commits_failing_last=last_fails)


@selector(
    "hierarchy",
    threshold=share(),
    low_threshold=number("a number in [0, 1]", lambda value: 0 <= value <= 1, default=0.4),
)
def hierarchy(view: BlockView, *, threshold: float, low_threshold: float) -> Tensor:
    """Commit the best of every run of masked positions above a low threshold, all above the threshold, and the best.

    Source: dInfer (arXiv 2510.08666) `HierarchyDecoder`; both thresholds compare with >.
    """
    return select.select_hierarchy(view.confidence, view.candidates, threshold, low_threshold)


@selector("sequential")
def sequential(view: BlockView) -> Tensor:
    """Commit from left to right, as many as the scheduler asks for.

    Source: JetAstra/SDAR `sequential`, with the count capped at the masks left.
    """
    return select.select_first(view.candidates, view.quota)


@selector("random")
def random(view: BlockView) -> Tensor:
    """Commit positions at random, as many as the scheduler asks for.

    Source: LLaDA `random` remasking.
    """
    assert view.uniform is not None
    return commit.select_top(view.uniform(), view.candidates, view.quota)
