import re

import pytest
from dare_bench.leaderboard.charts import accuracy_against_forwards, curve_names, training_curves
from dare_bench.leaderboard.views import board
from dare_bench.results.queries import TrainingPointView


@pytest.fixture(scope="module")
def drawn(store):
    table = board(store, with_charts=False).index.tables[0]
    return table, accuracy_against_forwards(table)


def test_one_chart_per_benchmark_with_title_description_and_theme_colours(drawn):
    charts, note = drawn[1]
    assert [name for name, _ in charts] == ["mini_choice", "mini_gsm"]
    assert note == ""
    for _, svg in charts:
        assert re.search(r'aria-labelledby="t1-c\d-t t1-c\d-d"', svg)
        assert "tiny-sdar sft default:" in svg
        assert "var(--s1)" in svg
        assert not re.search(r"style=|<style|<metadata|<\?xml|#0[0-9]0[0-9]0[0-9]", svg)
        ids = re.findall(r'\sid="([^"]+)"', svg)
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'href="#([^"]+)"', svg)) <= set(ids)


def test_drawing_is_deterministic(drawn):
    table, (charts, _) = drawn
    assert accuracy_against_forwards(table)[0] == charts


def points(**series):
    return [
        TrainingPointView(i, {k: v[i] for k, v in series.items()}, {}) for i in range(len(next(iter(series.values()))))
    ]


def test_training_curves_choose_and_describe():
    found = points(zeta=[1, 2, 3], loss=[2.0, 1.0, 0.5], **{"reward/mean": [0.1, None, 0.3]}, flag=[True, False, True])
    assert curve_names(found) == ["loss", "reward/mean", "zeta"]
    svg = training_curves(found, "curves")
    assert "loss from 2 to 0.5" in svg
    assert training_curves(points(loss=[1.0]), "curves") is None
    assert training_curves([], "curves") is None


def test_names_are_not_read_as_mathematics():
    svg = training_curves(points(**{"loss $x^2$ <b>": [1.0, 2.0]}), "curves")
    assert "loss $x^2$ &lt;b&gt;" in svg
