"""agg_loss: DARE's four reductions of a token loss."""

from __future__ import annotations

from collections.abc import Iterator

from dare_bench.dare.algorithms.objectives import aggregate
from dare_bench.dare.conformance.fixture import Compared, Fixture


def cases(data: Fixture) -> Iterator[Compared]:
    """Every reduction of one matrix."""
    loss, mask = data.tensor("loss_mat"), data.tensor("loss_mask").bool()
    for mode, expected in data["agg"].items():
        yield Compared(mode, expected, aggregate(loss, mask, mode))
