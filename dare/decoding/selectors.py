"""Which masked positions of a block are committed: one function per rule, registered by name.

A selector sees a batch of blocks at once and knows nothing of models. Importing this module imports no torch, so that
manifests can be validated against the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dare_bench.dare.families.registry import UnknownName
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from dare_bench.kernels import commit
    from torch import Tensor
else:
    torch = lazy_import("torch")
    commit = lazy_import("dare_bench.kernels.commit")


@dataclass
class BlockView:
    """What a selector decides on; A rows, block of b positions.

    Attributes:
        confidence: float [A, b], probability of the predicted token at temperature 1.
        candidates: bool [A, b], masked positions.
        quota: int64 [A], how many the scheduler asks for in this step.
        strict: thresholds compare with > (block families) instead of >=.
        noise: float64 [A, b] uniforms of this step, for random selection.
        guaranteed: int64 [A], committed at least, whatever the confidence.
    """

    confidence: Tensor
    candidates: Tensor
    quota: Tensor
    strict: bool
    noise: Callable[[], Tensor]
    guaranteed: Tensor


@dataclass(frozen=True)
class SelectorEntry:
    """A registered rule: `options` maps an option's name to its default (None = must be given)."""

    name: str
    function: Callable[..., Tensor]
    options: Mapping[str, Any]
    summary: str


_SELECTORS: dict[str, SelectorEntry] = {}


def selector(name: str, **options: Any) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a selection rule; keyword arguments are its options with defaults."""

    def add(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if name in _SELECTORS:
            raise ValueError(f"selector {name!r} is registered twice")
        summary = (function.__doc__ or "").strip().splitlines()[0]
        _SELECTORS[name] = SelectorEntry(name, function, options, summary)
        return function

    return add


def selectors() -> dict[str, SelectorEntry]:
    """All rules by name."""
    return dict(sorted(_SELECTORS.items()))


def resolve(name: str, options: Mapping[str, Any]) -> tuple[SelectorEntry, dict[str, Any]]:
    """A rule with its complete options.

    Raises:
        UnknownName: for an unknown rule or option.
        ValueError: for a missing option or a value outside (0, 1].
    """
    if name not in _SELECTORS:
        raise UnknownName("selector", name, list(_SELECTORS))
    entry = _SELECTORS[name]
    for option in options:
        if option not in entry.options:
            raise UnknownName(f"option of selector {name!r}", option, list(entry.options) or ["(none)"])
    merged = {**entry.options, **options}
    missing = [option for option, value in merged.items() if value is None]
    if missing:
        raise ValueError(f"selector {name!r} needs {', '.join(missing)}, for example {{{name}: 0.9}}")
    threshold = merged.get("threshold")
    is_number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if threshold is not None and not (is_number and 0 < threshold <= 1):
        raise ValueError(f"selector {name!r}: threshold is {threshold!r}; allowed: a number in (0, 1]")
    return entry, merged


@selector("low_confidence")
def low_confidence(view: BlockView) -> Tensor:
    """Commit the most confident positions, as many as the scheduler asks for.

    Source: LLaDA `low_confidence` remasking; SDAR `low_confidence_static` with the count capped at the masks left.
    """
    return commit.select_top(view.confidence, view.candidates, view.quota)


@selector("threshold", threshold=None)
def threshold(view: BlockView, *, threshold: float) -> Tensor:
    """Commit every position above a confidence threshold, and always the best ones up to the guaranteed number.

    Source: Fast-dLLM (arXiv 2505.22618) parallel decoding; SDAR `low_confidence_dynamic`.
    """
    return commit.select_threshold(
        view.confidence, view.candidates, threshold, strict=view.strict, at_least=view.guaranteed
    )


@selector("random")
def random(view: BlockView) -> Tensor:
    """Commit positions at random, as many as the scheduler asks for.

    Source: LLaDA `random` remasking.
    """
    return commit.select_top(view.noise().to(view.confidence.dtype), view.candidates, view.quota)
