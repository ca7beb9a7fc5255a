"""Training jobs in several processes, from the command line: the same history as in one, and errors that arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dare_bench.harness.environment import Device
from dare_bench.harness.errors import JobError, UserError
from dare_bench.harness.jobs import group
from dare_bench.harness.jobs.session import Session
from dare_bench.harness.prepare import Options, Prepared
from dare_bench.results.queries import training_points
from dare_bench.results.schema import TrainingRun
from dare_bench.results.store import Store
from sqlalchemy import select

SUITE = """\
suite: ranks
models: [tiny-sdar]
algorithms: [{name: d1, group_size: 3, inner_iterations: 2, lr: 5e-4, temperature: 2.0}]
benchmarks: [{name: mini_gsm, limit: 2}]
decoders: [{name: fast, selector: {threshold: 0.9}}]
seeds: [0]
train: {data: {mini_gsm: train}, steps: 4, batch_size: 2, micro_batch_size: 2, decoder: {gen_length: 8}}
"""


def history(database: Path) -> dict[int, dict[str, float]]:
    with Store.open(f"sqlite:///{database}", create=False) as store:
        with store.read() as session:
            fingerprint = session.scalars(select(TrainingRun.fingerprint)).one()
        return {point.step: point.metrics for point in training_points(store, fingerprint)}


@pytest.mark.slow
def test_two_processes_store_the_history_of_one(invoke: Any, in_tmp: Path) -> None:
    Path("ranks.yaml").write_text(SUITE, encoding="utf-8")
    for count, options in (("1", []), ("2", ["--ranks", "2", "--shard"])):
        done = invoke("run", "ranks.yaml", "--jobs", "1", "--device", "cpu", "--runs", count, *options)
        assert done.code == 0, done.err
    one, two = history(Path("1/dare-bench.db")), history(Path("2/dare-bench.db"))
    assert sorted(one) == sorted(two) == [1, 2, 3, 4]
    for step, metrics in one.items():
        assert two[step] == pytest.approx(metrics, abs=1e-4)


@pytest.mark.slow
def test_the_error_of_a_process_is_the_error_of_the_job(tmp_path: Path) -> None:
    job = {"spec": {"train": {"steps": "many"}, "algorithm": "d2", "model": {"family": "sdar"}}}
    session = Session({"ranks": 2, "device": "cpu", "db": "none", "runs": str(tmp_path)})
    with pytest.raises(JobError, match="d2"):
        group.train(job, session, tmp_path, lambda *point: None, lambda step: None)


def prepared(ranks: int, count: int) -> Prepared:
    gpus = [Device(f"cuda:{number}", "a GPU", 10, 10) for number in range(count)]
    options = Options("x", "sqlite://", Path(), ranks=ranks)
    return Prepared(options, None, None, [], None, gpus, set(), [], {})  # type: ignore[arg-type]


def test_each_process_takes_a_gpu_of_its_own() -> None:
    assert prepared(2, 5).workers() == ["cuda:0+cuda:1", "cuda:2+cuda:3"]
    assert prepared(1, 3).workers() == ["cuda:0", "cuda:1", "cuda:2"]
    with pytest.raises(UserError, match=r"--ranks 4.*allowed: 1 to 3"):
        prepared(4, 3).workers()
