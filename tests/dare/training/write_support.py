"""Run the cells of the support matrix and write down which passed: dare/algorithms/support.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TARGET = HERE.parents[2] / "dare" / "algorithms" / "support.json"


class Record:
    """Collects the outcome of every test of a cell."""

    def __init__(self) -> None:
        self.passed: dict[str, list[str]] = {}
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of one test."""
        if "test_cell[" not in report.nodeid:
            return
        name, _, family = report.nodeid.split("[")[1].rstrip("]").partition("-")
        if report.failed:
            self.failed.append(f"{name} x {family}")
        elif report.when == "call":
            self.passed.setdefault(name, []).append(family)


def main() -> int:
    """Write the record if every cell passed."""
    record = Record()
    pytest.main(["-q", "-p", "no:cacheprovider", str(HERE / "test_support.py"), "-k", "test_cell"], plugins=[record])
    if record.failed or not record.passed:
        print(f"nothing written; failed: {', '.join(record.failed) or 'everything'}", file=sys.stderr)
        return 1
    cells = {name: sorted(families) for name, families in sorted(record.passed.items())}
    TARGET.write_text(
        json.dumps({"test": "tests/dare/training/test_support.py::test_cell", "cells": cells}, indent=1) + "\n", "utf-8"
    )
    print(f"{TARGET}: {sum(map(len, cells.values()))} cells of {len(cells)} algorithms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
