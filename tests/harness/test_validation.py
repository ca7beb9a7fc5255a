"""A suite that keeps the checkpoint which is best on held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dare_bench.results.queries import training_points
from dare_bench.results.schema import Checkpoint, TrainingRun
from dare_bench.results.store import Store
from sqlalchemy import select

SUITE = """\
suite: held-out
models: [tiny-sdar]
algorithms: [{name: sft, lr: 5e-4, select: "best_on:validation", validation_rows: 12}]
benchmarks: [{name: mini_gsm, limit: 4}]
decoders: [{name: fast, selector: {threshold: 0.9}}]
seeds: [0]
train: {data: {mini_gsm: train}, steps: 4, batch_size: 4, checkpoint_every: 2}
"""


@pytest.mark.slow
def test_the_stored_checkpoint_is_the_best_of_those_scored(invoke: Any, in_tmp: Path) -> None:
    Path("held.yaml").write_text(SUITE, encoding="utf-8")
    done = invoke("run", "held.yaml", "--jobs", "1", "--device", "cpu")
    assert done.code == 0, done.err
    with Store.open("sqlite:///runs/dare-bench.db", create=False) as store:
        with store.read() as session:
            fingerprint, kept = session.execute(select(TrainingRun.fingerprint, Checkpoint.step).join(Checkpoint)).one()
        points = training_points(store, fingerprint)
        scores = {point.step: point.metrics["validation"] for point in points if "validation" in point.metrics}
        assert sorted(scores) == [2, 4]
        assert kept == max(scores, key=lambda step: (scores[step], -step))
