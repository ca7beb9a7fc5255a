"""Read models: recomputed aggregates equal a plain loop over rows, in a number of queries that does not grow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from dare_bench.results import queries
from dare_bench.results.store import Store, StoreError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event


@contextmanager
def statements(store: Store) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    event.listen(store.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(store.engine, "before_cursor_execute", note)


def suite(store: Store, make: SimpleNamespace, keys: list[str], name: str = "mini") -> int:
    cells = [make.cell(f"cell-{key}", key) for key in keys]
    return store.begin_suite(name, "", {"keys": keys}, "dare-bench run", None, cells)


def test_a_leaderboard_cell_holds_its_jobs_and_sums(store: Store, make: SimpleNamespace, fill: Any) -> None:
    environment = store.environment({"gpu": "H200"})
    fill(store, "1", [1.0, 0.0, 1.0], environment=environment)
    run = suite(store, make, ["1"])
    (cell,) = queries.leaderboard_cells(store)
    assert (cell.suite, cell.suite_run_id, cell.name, cell.status, cell.error) == ("mini", run, "cell-1", "done", None)
    assert (cell.model, cell.label, cell.benchmark, cell.decoder) == ("tiny-sdar", "sft", "mini_gsm", "default")
    assert cell.evaluation is not None and cell.scoring is not None and cell.training is not None
    costs = cell.evaluation.costs
    assert (costs.n, costs.nfe, costs.tokens_text, costs.tokens_committed) == (3, 1 + 2 + 3, 15, 24)
    assert (costs.flops, costs.row_forwards, costs.positions_fed, costs.kv_read) == (4.5e9, 12, 150, 1800)
    assert (costs.wall_s, costs.edits, costs.n_length) == (0.75, 0, 0)
    assert (cell.evaluation.decode_wall_s, cell.evaluation.hard_key) == (2.0, "ck1:0123456789abcdef")
    assert cell.scoring.score == pytest.approx(2 / 3)
    assert cell.scoring.metrics == {"strict": pytest.approx(2 / 3), "value": 1.0}
    assert (cell.scoring.n, cell.scoring.statuses) == (3, {"scored": 3})
    assert cell.training.totals == {"train_tokens": 100} and cell.training.wall_s == 9.0
    assert cell.training.environment == cell.evaluation.environment == {"gpu": "H200"}


VERDICTS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 0.25, 1 / 3]),
        st.dictionaries(st.sampled_from(["strict", "value", "other"]), st.sampled_from([0, 1, 0.5, 0.1]), max_size=3),
        st.sampled_from(["scored", "no_answer", "truncated", "timeout", "error"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VERDICTS)
def test_means_equal_a_loop_over_samples(make: SimpleNamespace, rows: list[tuple[float, dict, str]]) -> None:
    with Store.open("sqlite://") as store:
        row = store.begin_evaluation("e1", **make.evaluation(n_expected=len(rows)))
        names = [f"q{i}" for i in range(len(rows))]
        store.add_samples(row, [(make.sample(name), None) for name in names], 1.0)
        store.finish_evaluation(row, "done")
        scores = [
            make.verdict(name, value, metrics=metrics, status=status)
            for name, (value, metrics, status) in zip(names, rows, strict=True)
        ]
        store.write_scoring("s1", row, "number", 1, scores)
        suite(store, make, ["1"])
        (cell,) = queries.leaderboard_cells(store)
        details = queries.samples(store, "e1")
    scoring = cell.scoring
    assert scoring is not None
    assert scoring.score == pytest.approx(sum(one.score["value"] for one in details if one.score) / len(rows))
    every = {name for _, metrics, _ in rows for name in metrics}
    assert scoring.metrics == {
        name: pytest.approx(sum(metrics.get(name, 0) for _, metrics, _ in rows) / len(rows)) for name in every
    }
    found = [status for _, _, status in rows]
    assert scoring.statuses == {status: found.count(status) for status in set(found)}
    assert cell.status == ("incomplete" if "error" in found else "done")


def test_the_number_of_queries_does_not_grow(store: Store, make: SimpleNamespace, fill: Any) -> None:
    counts = []
    keys: list[str] = []
    for size in (1, 6):
        while len(keys) < size:
            keys.append(str(len(keys)))
            fill(store, keys[-1], [1.0, 0.0], environment=store.environment({"host": keys[-1]}))
        suite(store, make, keys)
        with statements(store) as seen:
            assert len(queries.leaderboard_cells(store)) == size
            queries.outcomes(store, ["e" + key for key in keys])
            queries.training_curves(store, ["t" + key for key in keys])
            store.done("evaluation", ["e" + key for key in keys])
        counts.append(len(seen))
    assert counts[0] == counts[1] <= 24, counts


def test_states_of_a_cell(store: Store, make: SimpleNamespace, fill: Any) -> None:
    fill(store, "done", [1.0])
    row = fill(store, "rescored", [1.0])
    assert row
    store.begin_training("ttraining", **make.training())
    run = store.begin_training("tbroken", **make.training())
    store.finish_training(run, "failed", totals={}, wall_s=1.0, error="loss is nan")
    run = store.begin_training("ttrained", **make.training())
    store.finish_training(run, "done", totals={}, wall_s=1.0)
    row = store.begin_evaluation("eoom", **make.evaluation())
    store.finish_evaluation(row, "failed", error="out of memory")
    row = store.begin_evaluation("escorer", **make.evaluation(n_expected=1))
    store.add_samples(row, [(make.sample("q0"), None)], 1.0)
    store.finish_evaluation(row, "done")
    store.fail_scoring("sscorer", row, "number", 1, "scorer broke")
    suite(store, make, ["done", "absent", "training", "broken", "trained", "oom", "scorer"])
    found = {cell.name.removeprefix("cell-"): (cell.status, cell.error) for cell in queries.leaderboard_cells(store)}
    assert found == {
        "done": ("done", None),
        "absent": ("pending", None),
        "training": ("running", None),
        "broken": ("failed", "loss is nan"),
        "trained": ("pending", None),
        "oom": ("failed", "out of memory"),
        "scorer": ("failed", "scorer broke"),
    }


def test_the_newest_run_of_each_suite_counts(store: Store, make: SimpleNamespace, fill: Any) -> None:
    fill(store, "1", [1.0])
    fill(store, "2", [0.0])
    old = suite(store, make, ["1"])
    suite(store, make, ["1"], name="another")
    new = suite(store, make, ["2", "1"])
    assert [(cell.suite, cell.name) for cell in queries.leaderboard_cells(store)] == [
        ("another", "cell-1"),
        ("mini", "cell-2"),
        ("mini", "cell-1"),
    ]
    assert [cell.suite_run_id for cell in queries.leaderboard_cells(store, "mini")] == [new, new]
    assert [cell.name for cell in queries.leaderboard_cells(store, suite_run_id=old)] == ["cell-1"]
    assert [view.id for view in queries.suites(store, "mini")] == [new]
    assert [(view.id, view.n_cells) for view in queries.suites(store, "mini", latest=False)] == [(old, 1), (new, 2)]
    assert queries.cell_detail(store, "e1").cells == [("another", "cell-1"), ("mini", "cell-1")]


def test_unknown_names_are_said(store: Store, make: SimpleNamespace) -> None:
    assert queries.leaderboard_cells(store) == []
    suite(store, make, ["1"])
    with pytest.raises(StoreError, match="suite 'math' is not in this database; suites in it: mini"):
        queries.leaderboard_cells(store, "math")
    with pytest.raises(StoreError, match="run 99 is not in this database"):
        queries.leaderboard_cells(store, suite_run_id=99)
    for ask in (queries.cell_detail, queries.samples):
        with pytest.raises(StoreError, match="no evaluation 'nope' in this database"):
            ask(store, "nope")


def test_samples_are_limited_chosen_and_ordered(store: Store, make: SimpleNamespace, fill: Any) -> None:
    fill(store, "1", [1.0, 0.0, 1.0, 0.0])
    assert [one.sample_id for one in queries.samples(store, "e1", limit=2)] == ["q0", "q1"]
    assert [one.sample_id for one in queries.samples(store, "e1", ids={"q3", "q1", "zz"})] == ["q1", "q3"]
    assert queries.samples(store, "e1", ids=[]) == []
    assert all(one.trajectory is None for one in queries.samples(store, "e1", trajectories=False))
    assert queries.samples(store, "e1", scoring_fingerprint="none")[0].score is None


def test_outcomes_are_joined_by_sample_id(store: Store, make: SimpleNamespace, fill: Any) -> None:
    fill(store, "1", [1.0, 0.0])
    store.begin_evaluation("e2", **make.evaluation())
    found = queries.outcomes(store, ["e1", "e2", "unknown"])
    assert found == {
        "e1": {
            "q0": {"score": 1.0, "strict": 1.0, "value": 1.0},
            "q1": {"score": 0.0, "strict": 0.0, "value": 1.0},
        },
        "e2": {},
        "unknown": {},
    }
    found["e1"]["q0"]["value"] = 7.0  # a caller's change must not reach the next answer
    assert queries.outcomes(store, ["e1"])["e1"]["q0"]["value"] == 1.0
