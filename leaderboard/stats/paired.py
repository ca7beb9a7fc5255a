"""Two cells on the same questions: discordant counts, exact McNemar test, Bonett-Price interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special


@dataclass(frozen=True)
class PairedCounts:
    """The 2 x 2 table of two cells answering the same questions.

    Attributes:
        both: questions both got right.
        only_a: questions only A got right (b in the formulas).
        only_b: questions only B got right (c in the formulas).
        neither: questions both got wrong.
    """

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def n(self) -> int:
        """Number of questions."""
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def delta(self) -> float:
        """Accuracy of A minus accuracy of B, in [-1, 1]."""
        return (self.only_a - self.only_b) / self.n

    @property
    def standard_error(self) -> float:
        """Standard error of `delta`; equals sem of the per-question differences."""
        b, c, n = self.only_a, self.only_b, self.n
        return math.sqrt(max(0.0, (b + c) / n - self.delta**2) / (n - 1))

    @property
    def p_value(self) -> float:
        """Two-sided exact McNemar p."""
        return mcnemar_exact(self.only_a, self.only_b)


def paired_counts(a: Mapping[str, float], b: Mapping[str, float]) -> PairedCounts:
    """Join two cells by question id and count.

    Args:
        a: question id -> score 0 or 1 of cell A.
        b: question id -> score 0 or 1 of cell B, with the same ids.

    Returns:
        The 2 x 2 table.

    Raises:
        ValueError: the id sets differ (a comparison on different questions is none), are empty, or a score is
            neither 0 nor 1.
    """
    if a.keys() != b.keys() or not a:
        missing = sorted(a.keys() ^ b.keys())[:3]
        raise ValueError(
            f"paired comparison needs the same questions in both cells: {len(a)} and {len(b)} ids, "
            f"first ids in only one of them: {missing}; re-run the incomplete cell"
        )
    ids = sorted(a)
    x = np.array([a[i] for i in ids], dtype=float)
    y = np.array([b[i] for i in ids], dtype=float)
    if not (np.isin(x, (0, 1)).all() and np.isin(y, (0, 1)).all()):
        raise ValueError("exact McNemar needs scores of 0 or 1; fractional scores need a sign-flip test")
    return PairedCounts(
        both=int(np.sum((x == 1) & (y == 1))),
        only_a=int(np.sum(x > y)),
        only_b=int(np.sum(x < y)),
        neither=int(np.sum((x == 0) & (y == 0))),
    )


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Exact two-sided McNemar test.

    Args:
        only_a: questions only A got right, >= 0.
        only_b: questions only B got right, >= 0.

    Returns:
        p value; 1.0 when no question separates the two (the test is undefined for 0 trials).
    """
    trials = only_a + only_b
    if trials == 0:
        return 1.0
    return min(1.0, 2.0 * float(special.bdtr(min(only_a, only_b), trials, 0.5)))


def bonett_price(only_a: int, only_b: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of the difference of two paired rates.

    Args:
        only_a: questions only A got right.
        only_b: questions only B got right.
        n: number of questions.
        confidence: coverage, in (0, 1).

    Returns:
        (lo, hi) of A minus B, in [-1, 1].

    Source: Bonett and Price, adjusted Wald interval for a difference of binomial proportions from paired data.
    """
    z = float(special.ndtri(0.5 + confidence / 2))
    p1, p2 = (only_a + 1) / (n + 2), (only_b + 1) / (n + 2)
    delta = p1 - p2
    half = z * math.sqrt((p1 + p2 - delta * delta) / (n + 2))
    return max(-1.0, delta - half), min(1.0, delta + half)
