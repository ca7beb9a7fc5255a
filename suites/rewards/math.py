"""`math`: an equivalent answer, and the tags and box that hold it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dare_bench.suites.benchmarks.base import Row
from dare_bench.suites.rewards.base import Options, Reward
from dare_bench.suites.rewards.registry import reward
from dare_bench.suites.scoring import equivalence
from dare_bench.suites.scoring.latex_text import stated
from dare_bench.suites.scoring.tags import last_tag

_BOX = re.compile(r"\\f?boxed\s?\{")


@dataclass(frozen=True)
class MathOptions(Options):
    """Options of `math`.

    Attributes:
        correctness: paid for an answer that equals the gold.
        format: times 1 for answer tags and a box, 0.75 for tags, 0.5 for a box, 0.25 for neither; 0 = form is not paid.
        d1_boxed_bug: published reading, whose test for a box never holds: 0.75 with tags, 0.25 without.
        seconds: time for one comparison; what takes longer is wrong and logged as ``grader timeout``.
    """

    correctness: float = 2.0
    format: float = 1.0
    d1_boxed_bug: bool = False
    seconds: float = equivalence.TIME_LIMIT

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.seconds <= 600:
            raise ValueError(f"seconds: {self.seconds!r}; allowed: above 0, up to 600")


@reward
class Math(Reward):
    """Equivalence of the stated answer plus a format term.

    The last box decides, else the answer tag, an answer phrase, the last equation; both sides are normalised, plain
    numbers are compared exactly, the rest by Math-Verify in a process with a time limit. Source: d1 (arXiv 2504.12216).
    """

    name = "math"
    summary = "equivalent answer 2, plus 1 for answer tags and box, 0.75 for tags, 0.5 for a box, 0.25 for neither"
    options_class = MathOptions

    def grade(self, text: str, row: Row) -> float:
        """Returns the sum of both terms."""
        return self.options.correctness * self.exact(text, row) + self.options.format * self._form(text)

    def exact(self, text: str, row: Row) -> float:
        """Returns 1 where the stated answer equals the gold."""
        found = stated(text)
        if found is None:
            self.note("no answer")
            return 0.0
        verdict = equivalence.compare(found.text, row.gold, seconds=self.options.seconds)
        self.note(verdict.rule if verdict.rule == equivalence.TIMEOUT else found.rule)
        return float(verdict.equal)

    def _form(self, text: str) -> float:
        has_box = _BOX.search(text) is not None and not self.options.d1_boxed_bug
        return ((1.0 if last_tag(text) is not None else 0.0) + (1.0 if has_box else 0.5)) / 2
