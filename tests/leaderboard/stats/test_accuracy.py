import numpy as np
import pytest
from dare_bench.leaderboard.stats.accuracy import Interval, standard_error, wilson
from scipy import stats


def test_e1_standard_error_and_wilson():
    x = [1, 1, 1, 0, 1, 0, 0, 1]
    assert standard_error(x) == pytest.approx(0.182981, abs=1e-6)
    interval = wilson(np.mean(x), 8)
    assert (interval.lo, interval.hi) == pytest.approx((0.305742, 0.863156), abs=1e-6)
    assert interval.method == "wilson"
    assert interval.half_width == pytest.approx((0.863156 - 0.305742) / 2, abs=1e-6)


@pytest.mark.parametrize(
    ("k", "n", "se", "lo", "hi"),
    [
        (1009, 1319, 0.011679, 0.741342, 0.787066),
        (77, 164, 0.039090, 0.394705, 0.545715),
        (63, 198, None, 0.257293, 0.385991),
        (30, 30, 0.0, 0.886487, 1.0),
        (0, 30, 0.0, 0.0, 0.113513),
    ],
)
def test_e1_examples(k, n, se, lo, hi):
    interval = wilson(k / n, n)
    assert (interval.lo, interval.hi) == pytest.approx((lo, hi), abs=1e-6)
    if se is not None:
        assert standard_error([1] * k + [0] * (n - k)) == pytest.approx(se, abs=1e-6)


def test_closed_form_equals_scipy_for_every_count():
    for k in range(31):
        expected = stats.binomtest(k, 30).proportion_ci(method="wilson")
        assert (wilson(k / 30, 30).lo, wilson(k / 30, 30).hi) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_refusals_name_the_values():
    with pytest.raises(ValueError, match="n=0"):
        wilson(0.5, 0)
    with pytest.raises(ValueError, match=r"rate=1\.5"):
        wilson(1.5, 3)
    with pytest.raises(ValueError, match=r"shape \(1,\)"):
        standard_error([1])
    assert Interval(0.25, 0.75, "wilson").half_width == 0.25
