r"""`mini_gsm`: templated word problems with a short worked solution; the answer is one number in `\boxed{}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dare_bench.suites.benchmarks.base import Protocol, Row
from dare_bench.suites.benchmarks.registry import benchmark
from dare_bench.suites.benchmarks.shipped import ShippedBenchmark, further, text
from dare_bench.suites.mini import gsm


@benchmark
class MiniGsm(ShippedBenchmark):
    """Word problems small enough for a model of one million weights."""

    name = "mini_gsm"
    title = "mini-GSM"
    description = "Templated word problems of the project's own authorship; the answer is one number in a box."
    version = 1
    protocols: ClassVar = {
        "std-1": Protocol(
            id="std-1", system=None, template="{question}", few_shot=0, gen_length=64, scorer="mini_number"
        )
    }
    pairs_version = 1
    file_columns = ("id", "question", "solution", "answer", "template", "numbers")

    def _row(self, fields: Mapping[str, Any]) -> Row:
        """Makes a row; the gold is a whole number, rows of one template form a cluster."""
        return Row(
            id=text(fields, "id"),
            question=text(fields, "question"),
            gold=str(int(str(fields["answer"]))),
            columns=further(fields),
            cluster=str(fields["template"]),
            solution=text(fields, "solution"),
        )

    def _rejected(self, row: Row) -> str:
        """Returns the worked answer with a slip in one step, carried to the end."""
        return gsm.wrong(str(row.columns["template"]), tuple(row.columns["numbers"]), key=row.id)
