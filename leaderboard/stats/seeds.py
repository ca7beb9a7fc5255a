"""Seeds crossed with questions: variance of a mean over both, and of a difference of two algorithms."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from dare_bench.leaderboard.stats.accuracy import Interval
from numpy.typing import ArrayLike, NDArray
from scipy import special

#: Fewer seeds than this say nothing useful about how re-training would vary.
MIN_SEEDS = 3


@dataclass(frozen=True)
class Crossed:
    """Two-way decomposition (seeds x questions, one score per cell) of a mean score.

    Attributes:
        mean: mean over seeds and questions.
        n_seeds: S.
        n_items: n.
        ms_seed: mean square between seeds.
        ms_item: mean square between questions.
        ms_error: residual mean square.
    """

    mean: float
    n_seeds: int
    n_items: int
    ms_seed: float
    ms_item: float
    ms_error: float

    @property
    def seed_variance(self) -> float:
        """Variance between seeds, clamped at 0."""
        return max(0.0, (self.ms_seed - self.ms_error) / self.n_items)

    @property
    def variance(self) -> float:
        """Variance of `mean` for other seeds and other questions."""
        scale = self.n_seeds * self.n_items
        return max((self.ms_seed + self.ms_item - self.ms_error) / scale, self.ms_item / scale)

    @property
    def dof(self) -> float:
        """Satterthwaite degrees of freedom; infinite when nothing varies."""
        s, n = self.n_seeds, self.n_items
        spread = self.ms_seed**2 / (s - 1) + self.ms_item**2 / (n - 1) + self.ms_error**2 / ((s - 1) * (n - 1))
        combined = (self.ms_seed + self.ms_item - self.ms_error) ** 2
        # combined = 0 beside spread > 0 would mean 0 degrees; one is the fewest an interval can be made of.
        return math.inf if spread == 0 else max(1.0, combined / spread)

    def interval(self, *, confidence: float = 0.95) -> Interval:
        """Interval of `mean` for other questions and other seeds, clipped to [0, 1]."""
        half = _t_quantile(self.dof, confidence) * math.sqrt(self.variance)
        return Interval(max(0.0, self.mean - half), min(1.0, self.mean + half), "crossed")


@dataclass(frozen=True)
class Difference:
    """Difference of two algorithms (A minus B) over questions they share.

    Attributes:
        delta: mean difference, in [-1, 1].
        variance: its variance.
        dof: Satterthwaite degrees of freedom.
    """

    delta: float
    variance: float
    dof: float

    def interval(self, *, confidence: float = 0.95) -> tuple[float, float]:
        """(lo, hi) of the difference."""
        half = _t_quantile(self.dof, confidence) * math.sqrt(self.variance)
        return self.delta - half, self.delta + half

    @property
    def p_value(self) -> float:
        """Two-sided p of "no difference"; 1 when nothing differs anywhere."""
        if self.variance == 0:
            return 1.0 if self.delta == 0 else 0.0
        t = abs(self.delta) / math.sqrt(self.variance)
        return float(2 * (special.ndtr(-t) if math.isinf(self.dof) else special.stdtr(self.dof, -t)))


def crossed(scores: ArrayLike) -> Crossed:
    """Decompose a table of scores.

    Args:
        scores: [S, n] one score per seed and question, in [0, 1]; same question order in every row.

    Returns:
        Means squares and everything derived from them; equal to a two-way analysis of variance without interaction.

    Raises:
        ValueError: fewer than two seeds or two questions.
    """
    table = _table(scores, min_seeds=2)
    s, n = table.shape
    mean = table.mean()
    by_seed, by_item = table.mean(axis=1), table.mean(axis=0)
    residual = table - by_seed[:, None] - by_item[None, :] + mean
    return Crossed(
        mean=float(mean),
        n_seeds=s,
        n_items=n,
        ms_seed=float(n * np.sum((by_seed - mean) ** 2) / (s - 1)),
        ms_item=float(s * np.sum((by_item - mean) ** 2) / (n - 1)),
        ms_error=float(np.sum(residual**2) / ((s - 1) * (n - 1))),
    )


def crossed_difference(a: ArrayLike, b: ArrayLike) -> Difference:
    """Compare two algorithms whose seeds are independent.

    One row stands for something fixed (an untrained base model decoded greedily has no seed to vary): it adds
    question variance and no seed variance. Rows of one *trained* checkpoint must not be passed alone; their seed
    variance is unknown, not zero.

    Args:
        a: [S_A, n] scores of A.
        b: [S_B, n] scores of B on the same questions in the same order.

    Returns:
        A minus B with its variance.

    Raises:
        ValueError: different questions, or fewer than two of them.
    """
    x, y = _table(a, min_seeds=1), _table(b, min_seeds=1)
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"compared tables have {x.shape[1]} and {y.shape[1]} questions; they must share all")
    n = x.shape[1]
    per_item = x.mean(axis=0) - y.mean(axis=0)
    v_item = float(np.var(per_item, ddof=1)) / n
    total, spread = v_item, v_item**2 / (n - 1)
    for table in (x, y):
        if table.shape[0] > 1:
            part = crossed(table).seed_variance / table.shape[0]
            total += part
            spread += part**2 / (table.shape[0] - 1)
    return Difference(float(per_item.mean()), total, total**2 / spread if spread > 0 else math.inf)


def _t_quantile(dof: float, confidence: float) -> float:
    level = 0.5 + confidence / 2
    return float(special.ndtri(level) if math.isinf(dof) else special.stdtrit(dof, level))


def _table(scores: ArrayLike, *, min_seeds: int) -> NDArray[np.float64]:
    table = np.asarray(scores, dtype=float)
    if table.ndim != 2 or table.shape[0] < min_seeds or table.shape[1] < 2:
        raise ValueError(f"expected a [seeds >= {min_seeds}, questions >= 2] table of scores, got shape {table.shape}")
    return table
