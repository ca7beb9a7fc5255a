"""`countdown`: the expression reaches the target, or something was answered."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dare_bench.suites.benchmarks.base import Row
from dare_bench.suites.errors import SuiteError
from dare_bench.suites.rewards.base import Options, Reward
from dare_bench.suites.rewards.registry import reward
from dare_bench.suites.scoring import countdown
from dare_bench.suites.scoring.tags import last_box_or_tag


@dataclass(frozen=True)
class CountdownOptions(Options):
    """Options of `countdown`.

    Attributes:
        format_score: paid for an answer that is not the solution. Published numbers use 0.1, which form alone earns;
            0 pays solutions only.
    """

    format_score: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.format_score < 1:
            raise ValueError(f"format_score: {self.format_score!r}; allowed: 0 to below 1")


@reward
class Countdown(Reward):
    r"""1 for a solution in the last answer tag or box, `format_score` for any other non-empty answer, else 0.

    Source: d1 (arXiv 2504.12216) and TinyZero, whose graders call `eval`; here the text is parsed.
    """

    name = "countdown"
    summary = "1 if the expression uses every number once and has the target's value; format_score for another answer"
    options_class = CountdownOptions
    columns = ("gold", "numbers")

    def grade(self, text: str, row: Row) -> float:
        """Grades the last answer; `numbers` holds the numbers, `target` (or the gold) what to reach."""
        answer = last_box_or_tag(text)
        if not answer:
            return 0.0
        numbers, target = _task(row)
        solved = countdown.is_solved(countdown.parse(answer), numbers, target)
        return 1.0 if solved else float(self.options.format_score)

    def exact(self, text: str, row: Row) -> float:
        """Returns 1 for a solution."""
        answer = last_box_or_tag(text)
        return float(bool(answer) and countdown.is_solved(countdown.parse(answer or ""), *_task(row)))


def _task(row: Row) -> tuple[list[int], int]:
    """Returns the numbers and the target of a row."""
    numbers = [int(digits) for digits in re.findall(r"[0-9]+", str(row.columns["numbers"]))]
    target = str(row.columns.get("target", row.gold)).strip()
    if not numbers or not re.fullmatch(r"-?[0-9]{1,18}", target):
        raise SuiteError(
            f"countdown: row {row.id} has numbers {row.columns['numbers']!r} and target {target!r}; "
            "expected a list of whole numbers and a whole number (column `target`, or the gold)"
        )
    return numbers, int(target)
