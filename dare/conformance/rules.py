"""Rules: each computes one recorded tensor from what was recorded with it. A tensor without a rule is a failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from dare_bench.dare.conformance.outcome import Outcome
from torch import Tensor


class Missing(LookupError):
    """A rule needs an input that was not recorded."""


@dataclass(frozen=True)
class Found:
    """What this installation computes for a recorded tensor, or for a part of it.

    Attributes:
        values: of the part's shape.
        part: index into the recorded tensor.
        real: bool over the leading axes, entries to compare; null = all.
        exact: equal or wrong, whatever tolerance is asked for; one recorded row then stands for all.
        distance: absolute differences of (found, recorded); null = of numbers.
    """

    values: Tensor
    part: tuple[Any, ...] = ()
    real: Tensor | None = None
    exact: bool = False
    distance: Callable[[Tensor, Tensor], Tensor] | None = None


Rule = Callable[[Any, re.Match[str]], Iterator[Found]]


class Rules:
    """Rules by the names of the tensors they compute."""

    def __init__(self) -> None:
        self._rules: dict[re.Pattern[str], Rule] = {}

    def add(self, pattern: str) -> Callable[[Rule], Rule]:
        """Register a rule for the tensors whose whole name matches; the groups are given to the rule.

        Args:
            pattern: regular expression.
        """

        def register(function: Rule) -> Rule:
            self._rules[re.compile(pattern)] = function
            return function

        return register

    def find(self, name: str) -> tuple[Rule, re.Match[str]] | None:
        """The rule for a tensor, or null.

        Raises:
            ValueError: several rules claim the name.
        """
        found = [(rule, match) for pattern, rule in self._rules.items() if (match := pattern.fullmatch(name))]
        if len(found) > 1:
            raise ValueError(f"{len(found)} rules claim the tensor {name!r}; the patterns must exclude each other")
        return found[0] if found else None

    def compare(self, subject: str, recorded: Any, wanted: Mapping[str, Tensor], tolerance: float) -> list[Outcome]:
        """Compute and compare every recorded tensor.

        Args:
            subject: name for the table.
            recorded: what the rules compute from.
            wanted: recorded tensors, by name.
            tolerance: largest absolute difference that passes.

        Returns:
            One outcome per tensor, by name; a tensor without a rule is a failed one.
        """
        return [self._compare(subject, recorded, name, wanted[name], tolerance) for name in sorted(wanted)]

    def _compare(self, subject: str, recorded: Any, case: str, wanted: Tensor, tolerance: float) -> Outcome:
        found = self.find(case)
        if found is None:
            return Outcome(subject, case, problem="no rule for a tensor of this name, so it cannot be compared")
        rule, match = found
        limit, differences = tolerance, []
        try:
            for item in rule(recorded, match):
                differences.append(_differences(item, wanted))
                limit = 0.0 if item.exact else limit
        except (Missing, ValueError, RuntimeError, IndexError) as error:
            # Recorded inputs of other shapes or out of range: this case fails and says why, the others go on.
            return Outcome(subject, case, problem=" ".join(str(error).split()))
        every = torch.cat(differences)
        if not every.numel():
            return Outcome(subject, case, problem="nothing to compare: no position is a real token")
        return Outcome(subject, case, every.numel(), float(every.max()), float(every.mean()), limit)


def _differences(found: Found, wanted: Tensor) -> Tensor:
    """Absolute differences [N] in float64; NaN where either side is NaN."""
    part, values = wanted[found.part], found.values.cpu()
    if found.exact and part.dim() == values.dim() and part.shape[1:] == values.shape[1:]:
        part = part.expand(values.shape) if part.shape[0] == 1 else part
    if part.shape != values.shape:
        raise ValueError(f"recorded with shape {tuple(part.shape)}, computed here with {tuple(values.shape)}")
    distance = (values.double() - part.double()).abs() if found.distance is None else found.distance(values, part)
    return (distance if found.real is None else distance[found.real.cpu()]).flatten()
