"""Where a run stands: steps, totals, and where it stops."""

from __future__ import annotations

from dataclasses import dataclass, field

from dare_bench.dare.training.config import TrainConfig


class Diverged(RuntimeError):
    """The loss or a gradient became NaN or infinite; the last good state is kept."""


@dataclass
class Run:
    """State of a run between steps."""

    step: int = 0
    totals: dict[str, float] = field(default_factory=dict)

    def add(self, **amounts: float) -> None:
        """Add to the totals, by name."""
        for name, amount in amounts.items():
            self.totals[name] = self.totals.get(name, 0) + amount


def stop_step(config: TrainConfig) -> int:
    """Steps until the checkpoint that is evaluated.

    Raises:
        ValueError: for another `select` than ``last`` or ``step:N``.
    """
    if config.select == "last":
        return config.steps
    kind, _, number = config.select.partition(":")
    if kind == "step" and number.isdigit() and 0 < int(number) <= config.steps:
        return int(number)
    raise ValueError(f"select: {config.select!r}; allowed: 'last' or 'step:N' with N up to steps ({config.steps})")
