"""Writing training runs, their points and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dare_bench.results.schema import Checkpoint, TrainingPoint, TrainingRun
from dare_bench.results.transactions import Transactions, insert_into, no_row
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session


class TrainingWrites(Transactions):
    """Methods of `Store` for training runs; each is one transaction."""

    def begin_training(self, fingerprint: str, *, redo: bool = False, **columns: Any) -> int:
        """Insert a training run as running, or set an unfinished one back to running; its points stay.

        Args:
            fingerprint: sha256 hex of everything that determines the result.
            redo: allow to begin a run that is done (its checkpoint file is gone).
            columns: further columns of `TrainingRun` (model, family, algorithm, label, seed, config, ...).

        Returns:
            Id of the row.

        Raises:
            StoreError: the run is done and `redo` is false.
        """
        return self._begin_job(TrainingRun, fingerprint, columns, redo)

    def add_training_points(
        self, training_run_id: int, points: Iterable[tuple[int, Mapping[str, Any], Mapping[str, Any]]]
    ) -> None:
        """Insert or replace points.

        Args:
            training_run_id: id from `begin_training`.
            points: (step, determined metrics, wall times); a number that is not finite is stored as null.
        """
        rows = [
            {"training_run_id": training_run_id, "step": step, "metrics": _finite(metrics), "timing": _finite(timing)}
            for step, metrics, timing in points
        ]
        if not rows:
            return
        with self.session() as session:
            insert = insert_into(session, TrainingPoint)
            session.execute(
                insert.on_conflict_do_update(
                    index_elements=["training_run_id", "step"],
                    set_={"metrics": insert.excluded.metrics, "timing": insert.excluded.timing},
                ),
                rows,
            )

    def drop_training_points_after(self, training_run_id: int, step: int) -> None:
        """Delete the points behind the step from which a run resumes.

        Args:
            training_run_id: id from `begin_training`.
            step: last step to keep; -1 drops all.
        """
        with self.session() as session:
            session.execute(
                delete(TrainingPoint).where(TrainingPoint.training_run_id == training_run_id, TrainingPoint.step > step)
            )

    def finish_training(
        self,
        training_run_id: int,
        status: str,
        *,
        totals: Mapping[str, Any] | None = None,
        wall_s: float | None = None,
        error: str | None = None,
        checkpoint: tuple[int, str, str] | None = None,
    ) -> None:
        """Set the final status of a training run, with its final checkpoint in the same transaction.

        Args:
            training_run_id: id from `begin_training`.
            status: "done" or "failed".
            totals: compute spent (train_tokens, rollout_tokens, train_flops, updates, ...).
            wall_s: seconds of the job.
            error: message of a failure.
            checkpoint: (step, path, sha256) of the weights to evaluate. Given here, no kill can leave a run that is
                done and has no checkpoint.

        Raises:
            StoreError: no such run, no such status, or a failure without error.
        """
        values = {"totals": _finite(totals or {}), "wall_s": wall_s, "error": error}
        with self.session() as session:
            self._finish_job(session, TrainingRun, training_run_id, status, values)
            if checkpoint is not None:
                _write_checkpoint(session, training_run_id, *checkpoint, is_final=True)

    def add_checkpoint(self, training_run_id: int, step: int, path: str, sha256: str, is_final: bool = False) -> None:
        """Record weights that lie on disk; a run has at most one final checkpoint.

        Args:
            training_run_id: id from `begin_training`.
            step: optimiser step.
            path: folder, relative to the runs folder.
            sha256: of the weights.
            is_final: these weights are the ones to evaluate.

        Raises:
            StoreError: no such run.
        """
        with self.session() as session:
            if session.get(TrainingRun, training_run_id) is None:
                raise no_row(TrainingRun, training_run_id)
            _write_checkpoint(session, training_run_id, step, path, sha256, is_final)

    def checkpoint(self, training_fingerprint: str) -> tuple[int, str, str] | None:
        """Final checkpoint of a training run.

        Args:
            training_fingerprint: fingerprint of the run.

        Returns:
            (step, path, sha256), None when there is none.
        """
        with self.read() as session:
            row = session.execute(
                select(Checkpoint.step, Checkpoint.path, Checkpoint.sha256)
                .join(TrainingRun)
                .where(TrainingRun.fingerprint == training_fingerprint, Checkpoint.is_final)
            ).first()
        return None if row is None else (row.step, row.path, row.sha256)


def _write_checkpoint(session: Session, run: int, step: int, path: str, sha256: str, is_final: bool) -> None:
    if is_final:
        session.execute(update(Checkpoint).where(Checkpoint.training_run_id == run).values(is_final=False))
    values = {"path": str(path), "sha256": sha256, "is_final": is_final}
    insert = insert_into(session, Checkpoint).values(training_run_id=run, step=step, **values)
    session.execute(insert.on_conflict_do_update(index_elements=["training_run_id", "step"], set_=values))


def _finite(value: Any) -> Any:
    """JSON has no NaN: a diverged loss becomes null, which a chart shows as a gap."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    plain = value.item() if hasattr(value, "item") else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
