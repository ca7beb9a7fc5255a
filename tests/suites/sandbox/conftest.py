"""A sandbox at each level that works here, and short ways to run programs in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from dare_bench.suites.sandbox import Outcome, Program, Sandbox, probe

TESTS = ("assert add(0, 1) == 1", "assert add(2, 3) == 5", "assert add(7, 5) == 12")


def usable(level: str) -> None:
    """Skips where a level does not work."""
    found = probe(level)
    if not found.is_usable:
        pytest.skip(f"isolation level {level} does not work here: {found.detail}")


@pytest.fixture(scope="session")
def sandbox():
    """Bubblewrap with two workers."""
    usable("bwrap")
    with Sandbox("bwrap", workers=2) as made:
        yield made


@pytest.fixture
def run(sandbox):
    """Runs one program that should be `add`."""

    def one(source: str, tests: object = TESTS, *, timeout: float = 3.0, name: str = "add") -> Outcome:
        return sandbox.run([Program(source, tests, name, timeout)])[0]

    return one


@pytest.fixture(scope="session")
def processes() -> Callable[[str], list[str]]:
    """Finds the processes of this machine, seen from outside, that have a text in their arguments."""

    def find(mark: str) -> list[str]:
        found = []
        for entry in Path(os.sep, "proc").iterdir():
            if entry.name.isdigit():
                try:
                    status = (entry / "status").read_text()
                    words = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if mark.encode() in words and "State:\tZ" not in status:
                    found.append(entry.name)
        return found

    return find
