"""`code`: the share of a row's tests that the program of an answer passes; it runs in the sandbox, never in this process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dare_bench.suites.benchmarks.base import Row
from dare_bench.suites.errors import DataError
from dare_bench.suites.rewards.base import Options, Reward, text_of
from dare_bench.suites.rewards.code_format import block, parses
from dare_bench.suites.rewards.registry import reward
from dare_bench.suites.sandbox import LEVELS, Outcome, Program, shared
from dare_bench.suites.scoring.boxes import before_end
from dare_bench.suites.scoring.code_blocks import extract

#: Outcomes that are remembered: the same answers are graded by several functions, and groups repeat each other.
REMEMBERED = 4096

_KNOWN: OrderedDict[Any, Outcome] = OrderedDict()
_LOCK = threading.Lock()


@dataclass(frozen=True)
class CodeOptions(Options):
    """Options of `code`.

    Attributes:
        require_format: whether only answers that `code_format` pays 1 are run; others earn 0.
        all_tests: 1 when every test passes, else 0, instead of the share.
        timeout: seconds of wall time for one program with all its tests.
        workers: programs at the same time; null = CPUs of the process.
        level: of isolation; null = the strongest that works.
        allow_unsafe: whether to run without isolation where nothing else works.
    """

    require_format: bool = True
    all_tests: bool = False
    timeout: float = 8.0
    workers: int | None = None
    level: str | None = None
    allow_unsafe: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.timeout <= 600:
            raise ValueError(f"timeout: {self.timeout!r}; allowed: seconds above 0, up to 600")
        if self.workers is not None and not 1 <= self.workers <= 256:
            raise ValueError(f"workers: {self.workers!r}; allowed: 1 to 256, or null")
        if self.level is not None and self.level not in LEVELS:
            raise ValueError(f"level: {self.level!r}; allowed: {', '.join(LEVELS)}, or null")


@reward
class Code(Reward):
    """Pass rate over the tests of the row; 0 for a forged pass. Source: DiffuCoder (arXiv 2506.20639).

    Reads ``tests`` (assert statements, or one text of them) and ``entry_point``. The test calls only that function, so
    helpers may come first; time is one limit for the program, not one for each test.
    """

    name = "code"
    summary = "share of the row's tests that the program passes in the sandbox; 0 without one fenced python block"
    options_class = CodeOptions
    columns = ("tests", "entry_point")

    def grade(self, text: str, row: Row) -> float:
        """Grades one answer; a batch at once is faster."""
        return self.grade_all([text], [row])[0]

    def grade_all(self, texts: Sequence[str], rows: Sequence[Row]) -> list[float]:
        """Grades a batch; programs run beside each other."""
        sources = [self._source(text, row) for text, row in zip(texts, rows, strict=True)]
        outcomes = self._outcomes(sources, rows)
        self.rules = [_rule(outcome) for outcome in outcomes]
        return [self._paid(outcome) for outcome in outcomes]

    def grade_exact(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """Returns 1 for each completion with a program that passes every test, whatever its form."""
        rows = self._rows(prompts, completions, columns)
        texts = [before_end(text_of(answer)) for answer in completions]
        sources = [extract(text, _entry_point(row)) for text, row in zip(texts, rows, strict=True)]
        return [float(outcome is not None and outcome.passed) for outcome in self._outcomes(sources, rows)]

    def exact(self, text: str, row: Row) -> float:
        """Returns 1 for a program that passes every test."""
        (outcome,) = self._outcomes([extract(text, _entry_point(row))], [row])
        return float(outcome is not None and outcome.passed)

    def _paid(self, outcome: Outcome | None) -> float:
        if outcome is None:
            return 0.0
        return float(outcome.passed) if self.options.all_tests else outcome.rate

    def _source(self, text: str, row: Row) -> str | None:
        """Returns the program to run, or null for none."""
        if self.options.require_format:
            code = block(text)
            if code is None or not parses(code):
                return None
        return extract(text, _entry_point(row))

    def _outcomes(self, sources: Sequence[str | None], rows: Sequence[Row]) -> list[Outcome | None]:
        """Runs the programs that are not known yet."""
        options = self.options
        place = (options.timeout, options.level, options.allow_unsafe)
        programs = [
            None if source is None else Program(source, _tests(row), _entry_point(row), options.timeout)
            for source, row in zip(sources, rows, strict=True)
        ]
        keys = [None if program is None else (program, place) for program in programs]
        with _LOCK:
            missing = [key for key in dict.fromkeys(keys) if key is not None and key not in _KNOWN]
            found = {key: _KNOWN[key] for key in keys if key in _KNOWN}
        if missing:
            sandbox = shared(options.level, options.workers, options.allow_unsafe)
            found.update(zip(missing, sandbox.run([program for program, _ in missing]), strict=True))
        with _LOCK:
            _KNOWN.update(found)
            while len(_KNOWN) > REMEMBERED:
                _KNOWN.popitem(last=False)
        return [None if key is None else found[key] for key in keys]


def _rule(outcome: Outcome | None) -> str:
    """Returns what training logs count: the status, and whether a person should look at the program."""
    if outcome is None:
        return "no program"
    return f"{outcome.status}, flagged" if outcome.flagged else outcome.status


def _tests(row: Row) -> str | tuple[str, ...]:
    """Returns the tests of a row or raises DataError."""
    tests = row.columns["tests"]
    if isinstance(tests, str):
        return tests
    if isinstance(tests, list | tuple) and tests and all(isinstance(test, str) for test in tests):
        return tuple(tests)
    raise DataError(f"row {row.id}: tests is {str(tests)[:80]!r}; allowed: a list of assert statements, or one text")


def _entry_point(row: Row) -> str:
    """Returns the entry point of a row or raises DataError."""
    name = row.columns["entry_point"]
    if isinstance(name, str) and name.isidentifier():
        return name
    raise DataError(
        f"row {row.id}: entry_point is {str(name)[:80]!r}; allowed: the name of the function the tests call"
    )
