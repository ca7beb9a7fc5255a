import pytest
from dare_bench.leaderboard.stats.multiplicity import holm


def test_e8_holm_adjusted():
    p = [0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205]
    assert holm(p) == pytest.approx([0.008, 0.056, 0.234, 0.234, 0.234, 0.234, 0.234, 0.234])


def test_order_is_kept_and_values_stay_below_one():
    assert holm([0.9, 0.01, 0.8]) == pytest.approx([1.0, 0.03, 1.0])
    assert holm([]) == []
