import pytest
from dare_bench.leaderboard.formats import counted, p_value, percent, points, quantity, seconds


def test_percent_and_points():
    assert (percent(0.7254), percent(None), percent(0)) == ("72.5", "–", "0.0")
    assert (points(0.0212), points(-0.05), points(-0.0001), points(None)) == ("+2.1", "−5.0", "0.0", "–")


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.0004, "<0.001"),
        (0.00123, "0.0012"),
        (0.0175, "0.018"),
        (0.0996, "0.10"),
        (0.21875, "0.22"),
        (1.0, "1.00"),
        (None, "–"),
    ],
)
def test_p_value(p, text):
    assert p_value(p) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0416, "0.042"),
        (7, "7"),
        (999.4, "999"),
        (999.6, "1 k"),
        (1_250_000, "1.25 M"),
        (2.097e15, "2.1 P"),
        (None, "–"),
    ],
)
def test_quantity(value, text):
    assert quantity(value) == text


def test_seconds_and_counts():
    assert [seconds(v) for v in (0.42, 12.4, 200, 9000, None)] == ["0.42 s", "12 s", "3 min 20 s", "2.5 h", "–"]
    assert (counted(1, "seed"), counted(3, "seed")) == ("1 seed", "3 seeds")
