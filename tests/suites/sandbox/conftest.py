"""A sandbox at each level that works here, and short ways to run programs in it."""

from __future__ import annotations

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
