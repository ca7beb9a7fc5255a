import math

import numpy as np
import pytest
from dare_bench.leaderboard.stats.seeds import Difference, crossed, crossed_difference
from scipy import stats

A = [[1, 1, 0, 1, 0, 1, 1, 0], [1, 0, 0, 1, 0, 1, 1, 0], [1, 1, 0, 1, 1, 1, 1, 1]]
B = [[1, 0, 0, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 1, 1, 0], [0, 1, 0, 1, 0, 1, 1, 0]]


def test_e7_mean_squares_and_interval():
    c = crossed(A)
    assert (c.ms_seed, c.ms_item, c.ms_error) == pytest.approx((0.291667, 0.476190, 0.101190), abs=1e-6)
    assert c.seed_variance == pytest.approx(0.0238095, abs=1e-6)
    assert c.variance == pytest.approx(0.0277778, abs=1e-6)
    assert c.dof == pytest.approx(5.874231, abs=1e-6)
    interval = c.interval()
    assert (interval.lo, interval.hi, interval.method) == (pytest.approx(0.256722, abs=1e-6), 1.0, "crossed")


def test_e7b_difference():
    d = crossed_difference(A, B)
    assert d.delta == pytest.approx(0.25)
    assert math.sqrt(d.variance) == pytest.approx(0.10446386, abs=1e-6)
    assert d.dof == pytest.approx(3.635193, abs=1e-6)
    assert d.interval() == pytest.approx((-0.051886, 0.551886), abs=1e-6)
    assert d.p_value == pytest.approx(2 * stats.t.sf(0.25 / 0.10446386, 3.635193), abs=1e-6)


def test_fixed_base_adds_question_variance_only():
    d = crossed_difference(A, [B[0]])
    per_item = np.mean(A, axis=0) - np.array(B[0])
    assert d.variance == pytest.approx(np.var(per_item, ddof=1) / 8 + 0.0238095 / 3, abs=1e-6)


def test_nothing_varies():
    same = crossed([[1, 1], [1, 1], [1, 1]])
    assert (same.variance, same.dof) == (0.0, math.inf)
    assert (same.interval().lo, same.interval().hi) == (1.0, 1.0)
    assert crossed_difference(A, A).delta == 0.0
    assert Difference(0.0, 0.0, math.inf).p_value == 1.0


def test_coverage_of_the_interval_is_nominal():
    rng = np.random.default_rng(0)
    hits, runs = 0, 400
    truth = np.mean(1 / (1 + np.exp(-(rng.normal(0, 1.5, 200_000) + rng.normal(0, 0.15, 200_000)))))
    for _ in range(runs):
        logit = rng.normal(0, 1.5, 164)[None, :] + rng.normal(0, 0.15, 3)[:, None]
        interval = crossed(rng.random((3, 164)) < 1 / (1 + np.exp(-logit))).interval()
        hits += interval.lo <= truth <= interval.hi
    assert 0.92 <= hits / runs <= 0.99


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"shape \(1, 8\)"):
        crossed([A[0]])
    with pytest.raises(ValueError, match="8 and 7 questions"):
        crossed_difference(A, [row[:7] for row in B])
