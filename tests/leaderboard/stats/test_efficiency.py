import pytest
from dare_bench.leaderboard.stats.efficiency import forward_stats, tokens_per_forward, tokens_per_second


def test_tpf_is_a_ratio_of_totals():
    # step map [0,0,1,1,1,2,3,3] with the end token at index 6: 6 tokens in 4 forwards
    assert tokens_per_forward(6, 4) == 1.5
    # two answers of 10/10 and 10/1: the ratio of totals is 20/11, the mean of ratios would be 5.5
    assert tokens_per_forward(20, 11) == pytest.approx(1.8182, abs=1e-4)
    assert tokens_per_forward(0, 0) is None


def test_forward_stats():
    s = forward_stats([10, 20, 30, 40])
    assert (s.mean, s.p90, s.total) == (25.0, pytest.approx(37.0), 100)
    with pytest.raises(ValueError, match="at least one"):
        forward_stats([])


def test_speed_needs_a_measured_time():
    assert tokens_per_second(120, 4.0) == 30.0
    assert tokens_per_second(120, None) is None
    assert tokens_per_second(120, 0.0) is None
