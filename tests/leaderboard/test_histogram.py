from itertools import pairwise

from dare_bench.leaderboard.histogram import bars, bins


def test_bins_are_whole_and_hold_everything():
    edges, counts = bins([3, 3, 4, 7])
    assert edges == [3, 4, 5, 6, 7, 8]
    assert counts == [2, 1, 0, 0, 1]
    edges, counts = bins(list(range(1000)))
    assert len(counts) <= 24
    assert sum(counts) == 1000
    assert len(set(b - a for a, b in pairwise(edges))) == 1
    assert bins([5])[1] == [1]


def test_svg_says_range_and_median():
    svg = bars([10, 12, 20], "h", "Forwards", "forwards")
    assert "3 answers, from 10 to 20 forwards, median 12" in svg
    assert svg.count("<rect") == 3
    assert "style=" not in svg
