"""Fixtures of the suites tests: where the reference folder is, and rows made by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dare_bench.suites.benchmarks.base import Row


@pytest.fixture(scope="session")
def reference() -> Path:
    """The shared reference folder, or a skip that says how to give it."""
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("DARE_BENCH_REFERENCE", root.parent / "shared"))
    if not (folder / "grading_cases").is_dir():
        pytest.skip(f"reference folder {folder} is not here; set DARE_BENCH_REFERENCE to it")
    return folder


@pytest.fixture
def make_row():
    """Makes a row from a gold answer and extra columns."""

    def make(gold: str, **columns: object) -> Row:
        return Row(id="row", question="question", gold=gold, columns=columns)

    return make
