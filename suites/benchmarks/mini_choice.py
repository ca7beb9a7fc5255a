r"""`mini_choice`: multiple choice with four options in the question; the answer is a letter in `\boxed{}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dare_bench.suites.benchmarks.base import Protocol, Row
from dare_bench.suites.benchmarks.registry import benchmark
from dare_bench.suites.benchmarks.shipped import ShippedBenchmark, further, text


@benchmark
class MiniChoice(ShippedBenchmark):
    """Multiple choice; guessing gives 25 %."""

    name = "mini_choice"
    title = "mini-choice"
    description = "Multiple choice of the project's own authorship; four options, the answer is a letter in a box."
    version = 1
    protocols: ClassVar = {
        "std-1": Protocol(
            id="std-1", system=None, template="{question}", few_shot=0, gen_length=32, scorer="mini_letter"
        )
    }
    file_columns = ("id", "question", "solution", "choices", "answer")

    def _row(self, fields: Mapping[str, Any]) -> Row:
        """Makes a row; the gold is a letter, rows that ask for the same fact form a cluster."""
        choices = fields["choices"]
        if not isinstance(choices, list) or not 2 <= len(choices) <= 10:
            raise ValueError(f"column 'choices' is {choices!r}, allowed: a list of 2 to 10 options")
        letters = "ABCDEFGHIJ"[: len(choices)]
        answer = text(fields, "answer")
        if answer not in letters or len(answer) != 1:
            raise ValueError(f"column 'answer' is {answer!r}, allowed: one of {', '.join(letters)}")
        return Row(
            id=text(fields, "id"),
            question=text(fields, "question"),
            gold=answer,
            columns=further(fields),
            cluster=f"{fields.get('template')}:{fields.get('key')}",
            solution=text(fields, "solution"),
        )
