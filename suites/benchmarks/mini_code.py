"""`mini_code`: one-line Python functions with asserts. Answers are run by the scorer, in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dare_bench.suites.benchmarks.base import Protocol, Row
from dare_bench.suites.benchmarks.registry import benchmark
from dare_bench.suites.benchmarks.shipped import ShippedBenchmark, further, text


@benchmark
class MiniCode(ShippedBenchmark):
    """One-line functions that must pass three asserts."""

    name = "mini_code"
    title = "mini-code"
    description = "One-line Python functions of the project's own authorship, each with three asserts."
    version = 1
    protocols: ClassVar = {
        "std-1": Protocol(
            id="std-1", system=None, template="{question}", few_shot=0, gen_length=64, scorer="code/asserts"
        )
    }
    file_columns = ("id", "question", "solution", "entry_point", "tests")

    def _row(self, fields: Mapping[str, Any]) -> Row:
        """Makes a row; the gold is the reference function."""
        solution = text(fields, "solution")
        return Row(
            id=text(fields, "id"),
            question=text(fields, "question"),
            gold=solution,
            columns=further(fields),
            solution=solution,
        )
