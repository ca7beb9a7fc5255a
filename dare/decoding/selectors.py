"""Which masked positions of a block are committed: the table of rules, and what a rule sees.

A selector sees a batch of blocks at once and knows nothing of models. A rule registers itself when its file
``selectors_*.py`` in this folder is imported; `selectors()` imports them all once. Importing this module imports no
torch, so that manifests can be validated against the table.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dare_bench.dare.decoding import options as option_specs
from dare_bench.dare.families.registry import UnknownName

if TYPE_CHECKING:
    from torch import Tensor

#: What the confidence of a `BlockView` may be.
MEASURES = ("probability", "margin", "entropy")


@dataclass
class BlockView:
    """What a selector decides on; A rows, block of b positions.

    Attributes:
        confidence: float [A, b], the measure of the selector's entry: probability of the chosen token, margin between
            the two best tokens, or negative entropy.
        candidates: bool [A, b], masked positions.
        quota: int64 [A], how many the scheduler asks for in this step.
        guaranteed: int64 [A], committed at least, whatever the confidence.
        strict: thresholds compare with > (block families) instead of >=.
        step: int64 [A], denoising step inside the block, from 0.
        steps: int64 [A], nominal steps of the block.
        probability: float [A, b], of the chosen token; `confidence` unless the measure differs.
        entropy: float [A, b], of the distribution, given when the entry needs it.
        uniform: float64 [A, b] uniforms of this step, for random selection.
        draw: (weights [A, b], counts [A]) -> bool [A, b], positions without replacement; used under ``torch_rng`` only.
        compat: published behaviour that is not the rule, name -> options.
    """

    confidence: Tensor
    candidates: Tensor
    quota: Tensor
    guaranteed: Tensor
    strict: bool = False
    step: Tensor | None = None
    steps: Tensor | None = None
    probability: Tensor | None = None
    entropy: Tensor | None = None
    uniform: Callable[[], Tensor] | None = None
    draw: Callable[[Tensor, Tensor], Tensor] | None = None
    compat: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.probability is None:
            self.probability = self.confidence


@dataclass(frozen=True)
class SelectorEntry:
    """A registered rule.

    Attributes:
        name: as in manifests.
        function: (view, **options) -> bool [A, b], True inside the candidates only.
        options: name -> default and allowed values.
        summary: one line.
        measure: what it wants as confidence, one of `MEASURES`.
        needs_entropy: whether it looks at entropies beside the confidence.
    """

    name: str
    function: Callable[..., Tensor]
    options: Mapping[str, option_specs.Option]
    summary: str
    measure: str = "probability"
    needs_entropy: bool = False


_SELECTORS: dict[str, SelectorEntry] = {}


def selector(
    name: str, *, measure: str = "probability", needs_entropy: bool = False, **options: option_specs.Option
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a selection rule; further keyword arguments are its options.

    Raises:
        ValueError: for a name that is taken, or an unknown measure.
    """
    if measure not in MEASURES:
        raise ValueError(f"selector {name!r}: measure is {measure!r}; allowed: {', '.join(MEASURES)}")

    def add(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if name in _SELECTORS:
            raise ValueError(f"selector {name!r} is registered twice")
        summary = (function.__doc__ or "").strip().splitlines()[0]
        _SELECTORS[name] = SelectorEntry(name, function, options, summary, measure, needs_entropy)
        return function

    return add


@functools.cache
def _import_rules() -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith("selectors_"):
            importlib.import_module(f"{__package__}.{module.name}")


def selectors() -> dict[str, SelectorEntry]:
    """All rules by name."""
    _import_rules()
    return dict(sorted(_SELECTORS.items()))


def resolve(name: str, options: Mapping[str, Any]) -> tuple[SelectorEntry, dict[str, Any]]:
    """A rule with its complete options.

    Raises:
        UnknownName: for an unknown rule or option.
        ValueError: for a missing option or a value that is not allowed.
    """
    known = selectors()
    if name not in known:
        raise UnknownName("selector", name, list(known))
    return known[name], option_specs.complete("selector", name, known[name].options, options)
