"""One accuracy and how sure it is: standard error and Wilson interval.

The statistics use `scipy.special` rather than `scipy.stats`: the same functions, without a second of imports before the
terminal table of a finished suite appears. Tests compare them with `scipy.stats`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a rate.

    Attributes:
        lo: lower end, in [0, 1].
        hi: upper end, in [0, 1].
        method: what the interval covers: ``wilson`` and ``mean`` (other questions of the same kind, this checkpoint)
            or ``crossed`` (other questions and other seeds).
    """

    lo: float
    hi: float
    method: str

    @property
    def half_width(self) -> float:
        """Half the width, for the short form "85.6 ±1.9"."""
        return (self.hi - self.lo) / 2


def standard_error(scores: ArrayLike) -> float:
    """Standard error of a mean score.

    Args:
        scores: [n] one score per question, in [0, 1]; repeats of a question are averaged first.

    Returns:
        sd(scores, ddof=1) / sqrt(n), in the unit of the scores.

    Raises:
        ValueError: fewer than two questions.
    """
    values = np.asarray(scores, dtype=float)
    if values.ndim != 1 or values.size < 2:
        raise ValueError(f"standard_error needs one row of at least 2 scores, got shape {values.shape}")
    return float(values.std(ddof=1) / math.sqrt(values.size))


def wilson(rate: float, n: int, *, confidence: float = 0.95) -> Interval:
    """Wilson score interval of a rate.

    The rate need not be a count over n: with fewer than three seeds the mean rate of the seeds is shown with the
    interval of n questions, so the closed form is used. For a whole count it equals
    ``scipy.stats.binomtest(k, n).proportion_ci(method="wilson")`` (tested).

    Args:
        rate: share of correct answers, in [0, 1].
        n: number of questions, at least 1.
        confidence: coverage, in (0, 1).

    Returns:
        Interval with method ``wilson``.

    Raises:
        ValueError: n < 1 or a rate outside [0, 1].
    """
    if n < 1 or not 0.0 <= rate <= 1.0:
        raise ValueError(f"wilson needs n >= 1 and a rate in [0, 1], got n={n}, rate={rate}")
    z = float(special.ndtri(0.5 + confidence / 2))
    denominator = 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / denominator
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n)) / denominator
    # At 0 and 1 the exact end is 0 and 1; rounding would leave 1e-17.
    lo = 0.0 if rate == 0.0 else max(0.0, centre - half)
    hi = 1.0 if rate == 1.0 else min(1.0, centre + half)
    return Interval(lo, hi, "wilson")


def mean_interval(scores: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Student interval of a mean of fractional scores (partial credit, or repeats averaged per question).

    Args:
        scores: [n] one score per question, in [0, 1].
        confidence: coverage, in (0, 1).

    Returns:
        Interval with method ``mean``, clipped to [0, 1].
    """
    values = np.asarray(scores, dtype=float)
    half = float(special.stdtrit(values.size - 1, 0.5 + confidence / 2)) * standard_error(values)
    mean = float(values.mean())
    return Interval(max(0.0, mean - half), min(1.0, mean + half), "mean")
