"""`mini_corpus`: what the shipped tiny models are pre-trained on. Drawn from a seed when read; never scored."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, ClassVar

from dare_bench.suites import data
from dare_bench.suites.benchmarks.base import Benchmark, Protocol, Row
from dare_bench.suites.benchmarks.registry import benchmark
from dare_bench.suites.mini import corpus

#: Rows drawn per kind.
ROWS = {"copy": 12_000, "arithmetic": 12_000, "story": 30_000, "fact": 20_000, "function": 12_000}


@functools.cache
def _rows(split: str) -> tuple[tuple[Row, ...], str]:
    drawn = corpus.rows(split, ROWS[split])
    rows = tuple(Row(id=row["id"], question=row["question"], gold="", solution=row["solution"]) for row in drawn)
    return rows, data.content_sha256(drawn, ("id", "question", "solution"))


@benchmark
class MiniCorpus(Benchmark):
    """Drills and problems in two answer styles; its splits are kinds of text, all for training."""

    name = "mini_corpus"
    title = "mini-corpus"
    description = "Pre-training text of the shipped tiny models: drills, stories, facts, functions; train only."
    version = 1
    protocols: ClassVar = {
        "std-1": Protocol(id="std-1", system=None, template="{question}", few_shot=0, gen_length=64, scorer=None)
    }
    splits: ClassVar[tuple[str, ...]] = tuple(ROWS)
    not_scorable = "it is pre-training text, every split is for training; use mini_gsm or mini_choice"

    def _load(self, split: str, data_dir: str | Path | None) -> tuple[list[Row], dict[str, Any]]:
        """Draws the rows of one kind."""
        rows, sha256 = _rows(split)
        return list(rows), {"id": self.name, "sha256": sha256, "split": split, "n": len(rows)}
