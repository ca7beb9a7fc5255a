"""Verdicts of reward functions: columns of mixed runs, null verdicts, weights and what is logged."""

from __future__ import annotations

from typing import Any

import pytest
from dare_bench.dare.training.grading import columns_of, combine, grade


class Length:
    """Pays the number of characters; knows nothing of empty text; tells its rule."""

    def __init__(self) -> None:
        self.rules: list[str] = []

    def __call__(self, prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        texts = [one[-1]["content"] for one in completions]
        self.rules = ["long" if len(text) > 2 else "" for text in texts]
        return [float(len(text)) if text else None for text in texts]


def room(prompts: Any, completions: Any, tokens_left: Any, gold: Any, **columns: Any) -> list[float]:
    return [left / 10 for left in tokens_left]


FUNCTIONS = [Length(), room]


def graded() -> list[Any]:
    columns = columns_of([{"gold": "a"}, {"numbers": [1]}, {"gold": "b"}], [0, 5, 10])
    assert columns == {"gold": ["a", None, "b"], "numbers": [None, [1], None], "tokens_left": [0, 5, 10]}
    return grade(FUNCTIONS, [[], [], []], ["abc", "", "d"], columns)


def test_one_verdict_per_response_and_function() -> None:
    assert graded() == [[(3.0, "long"), (0.0, "")], [(None, ""), (0.5, "")], [(1.0, ""), (1.0, "")]]
    assert grade([], [[]], ["x"], {}) == []


def test_null_is_left_out_of_sum_and_mean() -> None:
    totals, metrics = combine(FUNCTIONS, [1.0, 2.0], graded())
    assert totals == [3.0, 1.0, 3.0]
    assert metrics == {"reward/reward": 2.0, "reward/reward/long": 0.5, "reward/room": pytest.approx(0.5)}
    assert combine(FUNCTIONS, None, graded())[0] == [3.0, 0.5, 2.0]
    assert combine(FUNCTIONS, [0.0, 1.0], graded())[0] == [0.0, 0.5, 1.0], "weight 0 is logged only"


def test_a_function_that_judged_nothing_has_mean_0() -> None:
    function = Length()
    totals, metrics = combine([function], None, grade([function], [[]], [""], {}))
    assert (totals, metrics) == ([0.0], {"reward/reward": 0.0})
