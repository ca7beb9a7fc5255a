"""Where a run stands: steps, totals, and where it stops."""

from __future__ import annotations

from dataclasses import dataclass, field

from dare_bench.dare.training.config import TrainConfig

#: What `select` begins with when the checkpoint is chosen by its score on held-out rows.
BEST_ON = "best_on"


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
        ValueError: for another `select` than ``last``, ``step:N`` or ``best_on:SPLIT`` (never the test split).
    """
    kind, _, wanted = config.select.partition(":")
    if config.select == "last" or (kind == BEST_ON and wanted not in ("", "test")):
        return config.steps
    if kind == "step" and wanted.isdigit() and 0 < int(wanted) <= config.steps:
        return int(wanted)
    raise ValueError(
        f"select: {config.select!r}; allowed: 'last', 'step:N' with N up to steps "
        f"({config.steps}), or 'best_on:SPLIT' with a split that is neither trained on nor reported"
    )
