"""Checks shared by the decoding tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dare_bench.dare.decoding.generation import Generation


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Generation, Generation], None]:
    """`assert_same(one, two)`: equal in everything but the clock (confidences up to their last digit)."""

    def compare(one: Generation, two: Generation) -> None:
        for name in ("token_ids", "text_ids", "step_map", "block_starts", "kinds", "finish_reason", "convention"):
            assert getattr(one, name) == getattr(two, name), name
        assert one.confidence == pytest.approx(two.confidence, abs=2e-6)
        costs = [{key: value for key, value in vars(item.cost).items() if key != "wall_s"} for item in (one, two)]
        assert costs[0] == costs[1]

    return compare
