r"""GSM8K: 1,319 grade-school word problems (Cobbe et al. 2021, arXiv 2110.14168), from the hub or a local folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

from dare_bench.suites import data
from dare_bench.suites.benchmarks.base import Benchmark, Protocol, Row
from dare_bench.suites.benchmarks.registry import benchmark
from dare_bench.suites.errors import DataError

# Commit of huggingface.co/datasets/openai/gsm8k; the rows' own checksums below decide, whatever the hub serves.
_REVISION = "740312add88f781978c0658806c59bc2815b9866"
_COLUMNS = ("question", "answer")

# Each file is accepted in two forms: as the hub's rows are written by `datasets` (UTF-8) and as in the authors'
# repository (openai/grade-school-math at 3101c7d5, ASCII with \u escapes). The rows are the same.
SOURCES = {
    "test": data.Source(
        hub_id="openai/gsm8k",
        config="main",
        split="test",
        revision=_REVISION,
        file_name="gsm8k_test.jsonl",
        columns=_COLUMNS,
        n_rows=1319,
        content_sha256="752adc99f23132275139f1f7be57126b08735a55daf0c56859ee6df70abafbac",
        file_sha256=(
            "752adc99f23132275139f1f7be57126b08735a55daf0c56859ee6df70abafbac",
            "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
        ),
    ),
    "train": data.Source(
        hub_id="openai/gsm8k",
        config="main",
        split="train",
        revision=_REVISION,
        file_name="gsm8k_train.jsonl",
        columns=_COLUMNS,
        n_rows=7473,
        content_sha256="6043ef64147b59871f4fd3adf669c306fe0a4c27e5a5c4bfb761f3f084895a13",
        file_sha256=(
            "6043ef64147b59871f4fd3adf669c306fe0a4c27e5a5c4bfb761f3f084895a13",
            "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
        ),
    ),
}

_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
_INTEGER = re.compile(r"-?[0-9]+")


def split_answer(answer: str) -> tuple[str, str]:
    r"""Splits a published answer into its worked steps and the gold number.

    Args:
        answer: text of the `answer` column: steps with calculator marks, then `#### ` and the number.

    Returns:
        (steps without calculator marks, gold as a whole number without thousands commas, sign kept).

    Raises:
        ValueError: no `#### `, or no whole number after the last one.

    Source: openai/grade-school-math (gold = text after the last "#### "; 14 test golds have a comma, 2 are negative).
    """
    steps, mark, gold = answer.rpartition("#### ")
    gold = gold.strip().replace(",", "")
    if not mark or not _INTEGER.fullmatch(gold):
        raise ValueError(f"no whole number after the last '#### ' in {answer[-60:]!r}")
    return _CALCULATOR.sub("", steps).strip(), gold


@benchmark
class Gsm8k(Benchmark):
    """Grade-school word problems; the answer is one whole number."""

    name = "gsm8k"
    title = "GSM8K"
    description = "1,319 grade-school word problems (openai/gsm8k, MIT); hub at a pinned revision, or --data DIR."
    version = 1
    protocols: ClassVar = {
        "std-1": Protocol(
            id="std-1",
            system=None,
            template="{question}\nPlease reason step by step, and put your final answer within \\boxed{}.",
            few_shot=0,
            gen_length=512,
            scorer="math/number",
        )
    }
    splits = ("train", "test")

    def _load(self, split: str, data_dir: str | Path | None) -> tuple[list[Row], dict[str, Any]]:
        """Reads a split; the worked answer ends in the box that the prompt asks for."""
        source = SOURCES[split]
        rows = []
        for index, fields in enumerate(data.load(source, data_dir)):
            try:
                steps, gold = split_answer(fields["answer"])
            except ValueError as error:
                raise DataError(f"{source.file_name}, row {index + 1}: {error}") from error
            rows.append(
                Row(
                    id=f"gsm8k-{split}-{index:04d}",
                    question=fields["question"],
                    gold=gold,
                    solution=f"{steps}\nThe answer is \\boxed{{{gold}}}.",
                )
            )
        return rows, source.data_id
