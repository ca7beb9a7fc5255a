"""Writing and reading back; what is refused; nothing is counted twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from dare_bench.results import queries
from dare_bench.results.keys import fingerprint
from dare_bench.results.schema import Sample, Score, Trajectory
from dare_bench.results.store import Store, StoreError
from sqlalchemy import func, select


def count(store: Store, model: Any) -> int:
    with store.read() as session:
        return session.scalar(select(func.count()).select_from(model)) or 0


def test_a_cell_comes_back_as_it_was_written(store: Store, make: SimpleNamespace, fill: Any) -> None:
    environment = store.environment({"cpu": "x", "packages": {"torch": "2"}})
    fill(store, "1", [1.0, 0.0], environment=environment)
    first, second = queries.samples(store, "e1")
    assert (first.sample_id, second.sample_id) == ("q0", "q1")
    written = make.sample("q1", nfe=2)
    assert second.costs == {name: written.get(name, 0) for name in second.costs}
    assert second.text == written["text"] and second.prompt == written["prompt"] and second.gold == "2"
    assert second.trajectory == make.trajectory()
    assert second.score == {key: value for key, value in make.verdict("q1", 0.0).items() if key != "sample_id"}
    detail = queries.cell_detail(store, "e1")
    assert detail.evaluation.decoder == {"gen_length": 8}
    assert detail.evaluation.environment == {"cpu": "x", "packages": {"torch": "2"}}
    assert detail.evaluation.decode_wall_s == 2.0 and detail.evaluation.wall_s == 3.0
    assert detail.evaluation.started_at.utcoffset() is not None
    assert detail.training is not None and detail.training.totals == {"train_tokens": 100}
    assert detail.training.checkpoint == {"step": 2, "path": "ckpt", "sha256": "ab" * 32}
    assert store.checkpoint("t1") == (2, "ckpt", "ab" * 32)
    assert [point.metrics for point in queries.training_points(store, "t1")] == [{"loss": 2.0}, {"loss": 1.0}]


def test_an_environment_is_stored_once(store: Store) -> None:
    first = store.environment({"a": 1, "b": 2})
    assert store.environment({"b": 2, "a": 1}) == first
    assert store.environment({"a": 1, "b": 3}) != first


def test_a_batch_given_twice_counts_once(store: Store, make: SimpleNamespace) -> None:
    row = store.begin_evaluation("e", **make.evaluation(n_expected=3))
    batch = [(make.sample("q0"), make.trajectory()), (make.sample("q1"), None)]
    assert store.add_samples(row, batch, 4.0) == 2
    changed = [(make.sample("q0", text="other"), make.trajectory(step_map=[9, 9])), (make.sample("q1"), None)]
    assert store.add_samples(row, changed, 4.0) == 0
    # Half of this batch is new: half of its time is.
    assert store.add_samples(row, [(make.sample("q1"), None), (make.sample("q2"), make.trajectory())], 1.0) == 1
    assert store.add_samples(row, [], 9.0) == 0
    assert store.finished_sample_ids(row) == {"q0", "q1", "q2"}
    assert count(store, Sample) == 3 and count(store, Trajectory) == 2
    assert queries.cell_detail(store, "e").evaluation.decode_wall_s == 4.5
    assert queries.samples(store, "e", ids=["q0"])[0].text == "#### 2"


def test_repeats_are_samples_of_their_own(store: Store, make: SimpleNamespace) -> None:
    row = store.begin_evaluation("e", **make.evaluation(n_expected=2))
    store.add_samples(row, [(make.sample("q0"), None), (make.sample("q0", repeat=1), None)], 1.0)
    assert store.finished_sample_ids(row) == store.finished_sample_ids(row, repeat=1) == {"q0"}
    assert store.finished_sample_ids(row, repeat=2) == set()
    store.finish_evaluation(row, "done")
    store.write_scoring("s", row, "number", 1, [make.verdict("q0", 1.0), make.verdict("q0", 0.0, repeat=1)])
    assert queries.outcomes(store, ["e"]) == {"e": {"q0": {"score": 0.5, "strict": 0.5, "value": 1.0}}}


def test_done_needs_every_sample(store: Store, make: SimpleNamespace) -> None:
    row = store.begin_evaluation("e", **make.evaluation(n_expected=2))
    store.add_samples(row, [(make.sample("q0"), None)], 1.0)
    with pytest.raises(StoreError, match=r"mini_gsm\) has 1 samples, 2 are expected"):
        store.finish_evaluation(row, "done")
    assert store.done("evaluation", ["e"]) == set()
    store.add_samples(row, [(make.sample("q1"), None)], 1.0)
    store.finish_evaluation(row, "done")
    assert store.done("evaluation", ["e", "unknown"]) == {"e"}


def test_a_done_job_is_never_begun_again(store: Store, make: SimpleNamespace, fill: Any) -> None:
    row = fill(store, "1", [1.0, 1.0])
    with pytest.raises(StoreError, match="evaluation e1 is already done"):
        store.begin_evaluation("e1", **make.evaluation())
    with pytest.raises(StoreError, match="is done, not running"):
        store.add_samples(row, [(make.sample("q9"), None)], 1.0)
    with pytest.raises(StoreError, match="training_run t1 is already done"):
        store.begin_training("t1", **make.training())
    run = store.begin_training("t1", redo=True, **make.training())
    assert store.done("training", ["t1"]) == set()
    assert len(queries.training_points(store, "t1")) == 2
    store.finish_training(run, "done", totals={}, wall_s=1.0)


def test_a_failed_job_goes_on_from_what_it_had(store: Store, make: SimpleNamespace) -> None:
    row = store.begin_evaluation("e", **make.evaluation())
    store.add_samples(row, [(make.sample("q0"), None)], 1.0)
    store.finish_evaluation(row, "failed", error="out of memory")
    failed = queries.cell_detail(store, "e").evaluation
    assert (failed.status, failed.error) == ("failed", "out of memory") and failed.finished_at is not None
    assert store.begin_evaluation("e", **make.evaluation(log_path="second.log")) == row
    again = queries.cell_detail(store, "e").evaluation
    assert (again.status, again.error, again.finished_at, again.log_path) == ("running", None, None, "second.log")
    assert (again.costs.n, again.decode_wall_s) == (1, 1.0)


def test_training_points_are_replaced_and_dropped(store: Store, make: SimpleNamespace) -> None:
    run = store.begin_training("t", **make.training())
    store.add_training_points(run, [(step, {"loss": float(step)}, {}) for step in range(5)])
    store.add_training_points(run, [(4, {"loss": float("nan"), "parts": [float("inf"), 1.0]}, {"step_s": 0.5})])
    store.add_training_points(run, [])
    last = queries.training_points(store, "t")[-1]
    assert (last.step, last.metrics, last.timing) == (4, {"loss": None, "parts": [None, 1.0]}, {"step_s": 0.5})
    store.drop_training_points_after(run, 2)
    assert [point.step for point in queries.training_points(store, "t")] == [0, 1, 2]
    assert queries.training_curves(store, ["t", "none"])["none"] == []


def test_one_checkpoint_is_final(store: Store, make: SimpleNamespace) -> None:
    run = store.begin_training("t", **make.training())
    assert store.checkpoint("t") is None
    store.add_checkpoint(run, 10, "a", "1" * 64, True)
    store.add_checkpoint(run, 20, "b", "2" * 64, True)
    store.add_checkpoint(run, 20, "b2", "3" * 64, True)
    assert store.checkpoint("t") == (20, "b2", "3" * 64)
    with pytest.raises(StoreError, match="no training_run with id 99"):
        store.add_checkpoint(99, 1, "a", "1" * 64)


def test_scores_must_answer_every_sample_once(store: Store, make: SimpleNamespace, fill: Any) -> None:
    row = fill(store, "1", [1.0, 0.0])
    one, two = make.verdict("q0"), make.verdict("q1")
    for scores, said in [
        ([one], "1 scores for 2 samples"),
        ([one, one, two], "3 scores for 2 samples"),
        ([one, make.verdict("q7")], "'q7': the evaluation has no such sample"),
        ([one, {**two, "sample_id": "q1", "sample_pk": 999}], "scores of other evaluations: .999."),
        ([one, make.verdict("q1", status="lost")], "status 'lost'; allowed: scored, no_answer"),
        ([one, make.verdict("q1", 1.5)], "is 1.5; allowed: 0 to 1"),
        ([one, make.verdict("q1", float("nan"))], "is nan; allowed: 0 to 1"),
    ]:
        with pytest.raises(StoreError, match=said):
            store.write_scoring("s2", row, "number", 2, scores)
    assert store.done("scoring", ["s1", "s2"]) == {"s1"}
    assert count(store, Score) == 2


def test_rescoring_adds_and_a_done_scoring_stays(store: Store, make: SimpleNamespace, fill: Any) -> None:
    row = fill(store, "1", [1.0, 0.0])
    store.fail_scoring("s2", row, "number", 2, "scorer broke")
    assert [view.status for view in queries.cell_detail(store, "e1").scorings] == ["done", "failed"]
    better = [make.verdict("q0"), make.verdict("q1")]
    store.write_scoring("s2", row, "number", 2, better)
    store.write_scoring("s2", row, "number", 2, [make.verdict("q0", 0.0), make.verdict("q1", 0.0)])
    store.fail_scoring("s2", row, "number", 2, "too late")
    old, new = queries.cell_detail(store, "e1").scorings
    assert (old.score, new.score, new.error, new.scorer_version) == (0.5, 1.0, None, 2)
    assert count(store, Score) == 4
    assert queries.outcomes(store, ["e1"])["e1"]["q1"]["score"] == 1.0
    assert queries.samples(store, "e1", scoring_fingerprint="s1")[1].score["value"] == 0.0


def test_an_evaluation_of_nothing_can_be_done(store: Store, make: SimpleNamespace) -> None:
    row = store.begin_evaluation("e", **make.evaluation(n_expected=0))
    store.finish_evaluation(row, "done")
    store.write_scoring("s", row, "number", 1, [])
    (scoring,) = queries.cell_detail(store, "e").scorings
    assert (scoring.status, scoring.n, scoring.score, scoring.metrics) == ("done", 0, None, {})


def test_only_a_done_evaluation_is_scored(store: Store, make: SimpleNamespace) -> None:
    row = store.begin_evaluation("e", **make.evaluation())
    with pytest.raises(StoreError, match="is running; only a done evaluation is scored"):
        store.write_scoring("s", row, "number", 1, [])
    with pytest.raises(StoreError, match="no evaluation with id 77"):
        store.fail_scoring("s", 77, "number", 1, "x")


def test_final_states_are_checked(store: Store, make: SimpleNamespace) -> None:
    run = store.begin_training("t", **make.training())
    with pytest.raises(StoreError, match="status 'finished' does not finish a training_run; allowed: done, failed"):
        store.finish_training(run, "finished", totals={}, wall_s=1.0)
    with pytest.raises(StoreError, match="a failed training_run needs error="):
        store.finish_training(run, "failed", totals={}, wall_s=1.0)
    with pytest.raises(StoreError, match="a done training_run has no error"):
        store.finish_training(run, "done", totals={}, wall_s=1.0, error="but")
    with pytest.raises(StoreError, match="no training_run with id 55"):
        store.finish_training(55, "done", totals={}, wall_s=1.0)
    with pytest.raises(StoreError, match="no evaluation with id 55"):
        store.finish_evaluation(55, "done")
    with pytest.raises(StoreError, match="no suite_run with id 55"):
        store.finish_suite(55, "done")
    with pytest.raises(StoreError, match="no kind of job 'train'; allowed: training, evaluation, scoring"):
        store.done("train", [])


def test_suites_are_found_by_their_resolved_manifest(store: Store, make: SimpleNamespace) -> None:
    resolved = {"suite": "mini", "seeds": [0]}
    cells = [make.cell("b", "1"), make.cell("a", "2")]
    first = store.begin_suite("mini", "suite: mini", resolved, "dare-bench run", None, cells)
    store.finish_suite(first, "done")
    found = store.latest_suite("mini", fingerprint(resolved))
    assert found is not None and (found.id, found.status) == (first, "done")
    assert [cell.name for cell in found.cells] == ["b", "a"]
    assert store.latest_suite("mini", fingerprint({})) is None
    second = store.begin_suite("mini", "suite: mini", resolved, "dare-bench run", None, cells)
    again = store.latest_suite("mini", fingerprint(resolved))
    assert again is not None and (again.id, again.status) == (second, "running")


def test_a_failing_transaction_leaves_nothing(store: Store, make: SimpleNamespace) -> None:
    doubled = [make.cell("same", "1"), make.cell("same", "2")]
    with pytest.raises(Exception, match="UNIQUE constraint failed"):
        store.begin_suite("mini", "", {}, "", None, doubled)
    assert queries.suites(store) == []
    row = store.begin_evaluation("e", **make.evaluation())
    with pytest.raises(Exception, match="NOT NULL constraint failed"):
        store.add_samples(row, [(make.sample("q0"), {"token_ids": [1]})], 1.0)
    assert store.finished_sample_ids(row) == set()


def test_interrupted_rows_are_listed_and_marked(store: Store, make: SimpleNamespace, fill: Any) -> None:
    fill(store, "1", [1.0])
    store.begin_suite("mini", "", {}, "", None, [])
    store.begin_training("t", **make.training())
    row = store.begin_evaluation("e", **make.evaluation())
    store.add_samples(row, [(make.sample("q0"), None)], 1.0)
    found = store.interrupted()
    assert [(one.kind, one.name) for one in found] == [("suite", "mini"), ("training", "t"), ("evaluation", "e")]
    assert store.interrupted(mark=True) == found
    assert store.interrupted() == []
    marked = queries.cell_detail(store, "e").evaluation
    assert marked.status == "failed" and marked.error is not None and "interrupted" in marked.error
    assert store.done("training", ["t", "t1"]) == {"t1"}
    store.begin_evaluation("e", **make.evaluation())
    assert store.finished_sample_ids(row) == {"q0"}


def test_many_fingerprints_in_one_question(store: Store, fill: Any) -> None:
    fill(store, "1", [1.0])
    assert store.done("evaluation", (f"e{i}" for i in range(25_000))) == {"e1"}
