"""Options that algorithms share, with their checks. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ADVANTAGES = ("mean", "std", "loo", "zpop")
KLS = ("k1", "k2", "k3")
COUNTED = ("eos", "canvas")


def check_range(options: Any, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Refuse numbers outside of inclusive bounds; null passes where a field may be null.

    Args:
        options: a dataclass of options.
        bounds: field -> (lowest, highest).

    Raises:
        ValueError: naming the field, its value and what is allowed.
    """
    for name, (low, high) in bounds.items():
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            allowed = f"at least {low:g}" if high == float("inf") else f"{low:g} to {high:g}"
            raise ValueError(f"{name}: {value!r}; allowed: {allowed}")


def check_choice(options: Any, choices: Mapping[str, Sequence[Any]]) -> None:
    """Refuse values that are none of the allowed ones.

    Args:
        options: a dataclass of options.
        choices: field -> allowed values.

    Raises:
        ValueError: naming the field, its value and what is allowed.
    """
    for name, allowed in choices.items():
        value = getattr(options, name)
        if value not in allowed:
            raise ValueError(f"{name}: {value!r}; allowed: {', '.join(map(str, allowed))}")


@dataclass(frozen=True)
class GroupOptions:
    """Options of every algorithm that samples groups of responses.

    Attributes:
        group_size: responses per prompt (G).
        inner_iterations: optimiser steps on one rollout batch (mu), each with its own draws.
        temperature: of the rollout.
        advantage: ``mean`` (r - mean), ``std`` (divided by the group's standard deviation, ddof 1), ``loo`` (r - mean of
            the others) or ``zpop`` (divided by the population standard deviation).
        counted: response tokens that count: ``eos`` (through the first stop token) or ``canvas`` (all that was decoded).
    """

    group_size: int = 8
    inner_iterations: int = 1
    temperature: float = 1.0
    advantage: str = "mean"
    counted: str = "eos"

    def __post_init__(self) -> None:
        infinite = float("inf")
        check_range(
            self, {"group_size": (1, infinite), "inner_iterations": (1, infinite), "temperature": (0, infinite)}
        )
        check_choice(self, {"advantage": ADVANTAGES, "counted": COUNTED})
        if self.advantage in ("std", "zpop", "loo") and self.group_size < 2:
            raise ValueError(
                f"advantage: {self.advantage!r} with group_size 1; allowed: group_size 2 or more, or 'mean'"
            )


@dataclass(frozen=True)
class ClipOptions(GroupOptions):
    """Options of clipped policy gradients.

    Attributes:
        eps_low, eps_high: the ratio is clipped to [1 - eps_low, 1 + eps_high]; null eps_high = eps_low.
        dual_clip: bound c > 1 of the loss at negative advantages, or null.
        beta: weight of the KL to the reference; 0 = no reference is scored.
        kl: its estimate, ``k1``, ``k2`` or ``k3``.
    """

    eps_low: float = 0.2
    eps_high: float | None = None
    dual_clip: float | None = None
    beta: float = 0.0
    kl: str = "k3"

    def __post_init__(self) -> None:
        super().__post_init__()
        infinite = float("inf")
        check_range(
            self, {"eps_low": (0, 1), "eps_high": (0, infinite), "dual_clip": (1, infinite), "beta": (0, infinite)}
        )
        check_choice(self, {"kl": KLS})


@dataclass(frozen=True)
class TokenOptions(ClipOptions):
    """Options of clipped policy gradients whose ratio is that of a token.

    Attributes:
        aggregation: ``token-mean`` over all counted tokens, or ``seq-mean-token-mean``: of each response, then responses.
    """

    aggregation: str = "token-mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, {"aggregation": ("token-mean", "seq-mean-token-mean")})
