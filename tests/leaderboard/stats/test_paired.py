import numpy as np
import pytest
from dare_bench.leaderboard.stats.paired import PairedCounts, bonett_price, mcnemar_exact, paired_counts
from scipy import stats

E3 = PairedCounts(both=950, only_a=79, only_b=51, neither=239)


def test_e3_difference_error_p_and_interval():
    assert E3.n == 1319
    assert E3.delta == pytest.approx(0.0212282, abs=1e-6)
    assert E3.standard_error == pytest.approx(0.00862773, abs=1e-6)
    assert E3.p_value == pytest.approx(0.01754170, abs=1e-6)
    assert bonett_price(79, 51, 1319) == pytest.approx((0.00418805, 0.03820408), abs=1e-6)


@pytest.mark.parametrize(
    ("b", "c", "p"), [(15, 5, 0.04138947), (9, 1, 0.02148438), (3, 3, 1.0), (1, 0, 1.0), (0, 0, 1.0)]
)
def test_e3b_mcnemar(b, c, p):
    assert mcnemar_exact(b, c) == pytest.approx(p, abs=1e-6)


def test_e3b_bonett_price():
    assert bonett_price(9, 1, 40) == pytest.approx((0.03943323, 0.34151915), abs=1e-6)


def test_e4_counts_join_by_id_and_equal_the_sign_flip_test():
    x = [1, 1, 0, 1, 1, 1, 0, 1, 1, 0]
    y = [0, 1, 0, 0, 1, 0, 1, 0, 0, 0]
    a = {f"q{i}": v for i, v in enumerate(x)}
    b = {f"q{i}": y[i] for i in reversed(range(10))}
    counts = paired_counts(a, b)
    assert (counts.only_a, counts.only_b) == (5, 1)
    assert counts.p_value == pytest.approx(0.21875)
    flips = stats.permutation_test(
        (np.array(x) - np.array(y),), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=False
    )
    assert counts.p_value == pytest.approx(flips.pvalue)
    assert counts.standard_error == pytest.approx(stats.sem(np.array(x) - np.array(y)))


def test_different_questions_are_refused_with_an_id():
    with pytest.raises(ValueError, match="q2"):
        paired_counts({"q1": 1, "q2": 0}, {"q1": 1})
    with pytest.raises(ValueError, match="same questions"):
        paired_counts({}, {})


def test_fractional_scores_are_refused():
    with pytest.raises(ValueError, match="0 or 1"):
        paired_counts({"q": 0.5}, {"q": 1})
