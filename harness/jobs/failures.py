"""Store that a job failed, from the parent process: the worker may be dead. Imports no torch."""

from __future__ import annotations

from typing import Any

from dare_bench.harness.jobs.columns import evaluation_columns, training_columns
from dare_bench.harness.jobs.spec import Job
from dare_bench.results.schema import Evaluation, TrainingRun
from dare_bench.results.store import Store
from sqlalchemy import select


def store_failure(store: Store, job: Job, error: str, environment_id: int | None) -> None:
    """Give a failed or blocked job its row, so that the leaderboard shows "failed", never an absence.

    Args:
        store: open database.
        job: the job.
        error: what went wrong.
        environment_id: of this run.
    """
    log_path = f"logs/{job.log_name}"
    if job.kind == "score":
        evaluation_id = _find(store, Evaluation, job.spec["evaluation"])
        if evaluation_id is not None:
            store.fail_scoring(job.fingerprint, evaluation_id, job.spec["scorer"], job.spec["version"], error)
        return
    table: Any = TrainingRun if job.kind == "train" else Evaluation
    row_id = _find(store, table, job.fingerprint)
    shared = {"environment_id": environment_id, "log_path": log_path}
    if job.kind == "train":
        if row_id is None:
            row_id = store.begin_training(job.fingerprint, redo=True, **training_columns(job.spec), **shared)
        store.finish_training(row_id, "failed", error=error)
        return
    if row_id is None:
        training_id = _find(store, TrainingRun, job.spec["training"]) if job.spec["training"] else None
        columns = evaluation_columns(job.spec) | {"training_run_id": training_id}
        row_id = store.begin_evaluation(job.fingerprint, **columns, **shared)
    store.finish_evaluation(row_id, "failed", error=error)


def _find(store: Store, table: Any, fingerprint: str) -> int | None:
    with store.read() as session:
        return session.scalar(select(table.id).where(table.fingerprint == fingerprint))
