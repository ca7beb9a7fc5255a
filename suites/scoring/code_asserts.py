"""`code/asserts`: the program of an answer passes every assert statement of its row, in the sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dare_bench.suites.sandbox import Outcome, Program, best, shared
from dare_bench.suites.scoring.code_blocks import extract, reduced
from dare_bench.suites.scoring.registry import Scorer, Verdict, scorer

if TYPE_CHECKING:
    from dare_bench.suites.benchmarks.base import Row

#: Seconds of wall time for a program with all its tests.
TIMEOUT = 8.0


@scorer
class CodeAsserts(Scorer):
    """Right = every test in the column ``tests`` passes when it calls the function ``entry_point``."""

    name = "code/asserts"
    version = 1
    headline = "strict"
    summary = "the function passes every assert of the row, run in the sandbox"

    def refusal(self) -> str | None:
        """Says why programs cannot be run here."""
        if best().level != "none":
            return None
        return (
            "its answers are programs, which run only in the sandbox, and no isolation works here; install bubblewrap "
            "(`dare-bench doctor` tells what is missing), or use mini_gsm or mini_choice"
        )

    def score(self, text: str, row: Row) -> Verdict:
        """Grades one answer; many at once are faster."""
        return self.score_all([text], [row])[0]

    def score_all(self, texts: Sequence[str], rows: Sequence[Row]) -> list[Verdict]:
        """Grades answers beside each other; what ran out of time is tried once more, alone.

        Raises:
            SandboxError: no isolation works here.
        """
        programs: list[Program | None] = []
        for text, row in zip(texts, rows, strict=True):
            name = str(row.columns["entry_point"])
            code = extract(text, name)
            programs.append(None if code is None else Program(reduced(code), row.columns["tests"], name, TIMEOUT))
        wanted = [program for program in programs if program is not None]
        outcomes = iter(shared().run(wanted, rerun_timeouts=True) if wanted else ())
        return [self._verdict(program, None if program is None else next(outcomes)) for program in programs]

    def _verdict(self, program: Program | None, outcome: Outcome | None) -> Verdict:
        if program is None or outcome is None:
            return self.verdict(is_strict=False, is_right=False, extracted=None, detail="no function of that name")
        flags = f"; flagged: {', '.join(outcome.flagged)}" if outcome.flagged else ""
        return self.verdict(
            is_strict=outcome.passed,
            is_right=outcome.passed,
            extracted=program.source,
            detail=f"{outcome.status}: {outcome.detail} (isolation {outcome.isolation}){flags}",
            in_form=True,
        )
