"""The results database: opening it and writing to it.

Every method is one short transaction, so that a process killed at any moment leaves no row that is not true.
Reading lives in `dare_bench.results.queries`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dare_bench.results.keys import fingerprint as fingerprint_of
from dare_bench.results.opening import StoreError, open_engine
from dare_bench.results.schema import Cell, Environment, Evaluation, Scoring, SuiteRun, TrainingRun
from dare_bench.results.store_evaluation import EvaluationWrites
from dare_bench.results.store_training import TrainingWrites
from dare_bench.results.transactions import check_final, insert_into, no_row, now
from sqlalchemy import select, update
from sqlalchemy.orm import selectinload

__all__ = ["Interrupted", "Store", "StoreError"]

_KINDS = {"training": TrainingRun, "evaluation": Evaluation, "scoring": Scoring}

# Far below the number of bound values that SQLite (32,766) and PostgreSQL (65,535) accept in one statement.
_IN_CHUNK = 10_000


@dataclass(frozen=True)
class Interrupted:
    """A row that says "running" though no process works on it.

    Attributes:
        kind: "suite", "training" or "evaluation".
        id: primary key.
        name: suite name or fingerprint.
        started_at: when it was begun, UTC.
    """

    kind: str
    id: int
    name: str
    started_at: datetime


class Store(TrainingWrites, EvaluationWrites):
    """An open results database; usable as a context manager. Open one per process, never hand one through a fork."""

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Store:
        """Open a results database, making or upgrading its tables as needed.

        Args:
            url: ``sqlite:///runs/dare-bench.db`` or ``postgresql://user@host/name``.
            create: make a SQLite file that is not there.

        Returns:
            The store.

        Raises:
            StoreError: the place cannot be used, is not a dare-bench database, or was written by a newer dare-bench.
        """
        return cls(open_engine(url, create=create))

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def environment(self, data: Mapping[str, Any]) -> int:
        """Store an environment once.

        Args:
            data: see `dare_bench.results.provenance.environment`.

        Returns:
            Id of the row with these data.
        """
        key = fingerprint_of(data)
        with self.session() as session:
            session.execute(
                insert_into(session, Environment)
                .values(fingerprint=key, data=dict(data), created_at=now())
                .on_conflict_do_nothing(index_elements=["fingerprint"])
            )
            return session.scalars(select(Environment.id).where(Environment.fingerprint == key)).one()

    def begin_suite(
        self,
        suite: str,
        manifest_text: str,
        resolved: Mapping[str, Any],
        command_line: str,
        environment_id: int | None,
        cells: Sequence[Mapping[str, Any]],
    ) -> int:
        """Record one run of a manifest with its whole grid, as running.

        Args:
            suite: name in the manifest.
            manifest_text: the file as it was read.
            resolved: the manifest with all defaults; `manifest_hash` is its fingerprint.
            command_line: as typed.
            environment_id: id from `environment`.
            cells: columns of `Cell` without ids.

        Returns:
            Id of the suite run.
        """
        with self.session() as session:
            run = SuiteRun(
                suite=suite,
                manifest_hash=fingerprint_of(resolved),
                manifest_text=manifest_text,
                resolved=dict(resolved),
                command_line=command_line,
                status="running",
                environment_id=environment_id,
                started_at=now(),
                cells=[Cell(**cell) for cell in cells],
            )
            session.add(run)
            session.flush()
            return run.id

    def finish_suite(self, suite_run_id: int, status: str) -> None:
        """Set the final status of a suite run.

        Args:
            suite_run_id: id from `begin_suite`.
            status: "done", or "failed" when any of its cells failed.

        Raises:
            StoreError: no such run or no such status.
        """
        check_final(SuiteRun, status, "see its cells" if status == "failed" else None)
        with self.session() as session:
            changed = session.execute(
                update(SuiteRun).where(SuiteRun.id == suite_run_id).values(status=status, finished_at=now())
            )
            if not changed.rowcount:
                raise no_row(SuiteRun, suite_run_id)

    def latest_suite(self, suite: str, resolved_hash: str) -> SuiteRun | None:
        """Newest run of a suite with one resolved manifest, so that a finished one need not be recorded again.

        Args:
            suite: name.
            resolved_hash: fingerprint of the resolved manifest.

        Returns:
            Detached row with its `cells`, None when there is none.
        """
        with self.read() as session:
            found = session.scalars(
                select(SuiteRun)
                .where(SuiteRun.suite == suite, SuiteRun.manifest_hash == resolved_hash)
                .order_by(SuiteRun.id.desc())
                .limit(1)
                .options(selectinload(SuiteRun.cells))
            ).first()
            if found is not None:
                found.cells.sort(key=lambda cell: cell.id)  # the order of the grid
            return found

    def done(self, kind: str, fingerprints: Iterable[str]) -> set[str]:
        """Which jobs need not run again, in one query (per 10,000 fingerprints).

        Args:
            kind: "training", "evaluation" or "scoring".
            fingerprints: the jobs in question.

        Returns:
            Those whose row has status "done".

        Raises:
            StoreError: no such kind.
        """
        if kind not in _KINDS:
            raise StoreError(f"there is no kind of job {kind!r}; allowed: {', '.join(_KINDS)}")
        model = _KINDS[kind]
        asked = sorted(set(fingerprints))
        found: set[str] = set()
        with self.read() as session:
            for start in range(0, len(asked), _IN_CHUNK):
                part = asked[start : start + _IN_CHUNK]
                query = select(model.fingerprint).where(model.status == "done", model.fingerprint.in_(part))
                found.update(session.scalars(query))
        return found

    def interrupted(self, *, mark: bool = False) -> list[Interrupted]:
        """Rows left "running".

        The database cannot see processes: call this where no other run can be at work (the harness holds a lock).

        Args:
            mark: set them to "failed" with an error that says so. Their samples and points stay, and beginning the
                job again goes on from them.

        Returns:
            The rows as they were found, oldest first per kind.
        """
        kinds = (("suite", SuiteRun, SuiteRun.suite), ("training", TrainingRun, TrainingRun.fingerprint))
        kinds += (("evaluation", Evaluation, Evaluation.fingerprint),)
        found: list[Interrupted] = []
        with self.session() if mark else self.read() as session:
            for kind, model, name in kinds:
                rows = session.execute(
                    select(model.id, name, model.started_at).where(model.status == "running").order_by(model.id)
                ).all()
                found += [Interrupted(kind, *row) for row in rows]
                if mark and rows:
                    values: dict[str, Any] = {"status": "failed", "finished_at": now()}
                    if kind != "suite":
                        values["error"] = "interrupted: the process ended without finishing this job; run it again"
                    session.execute(update(model).where(model.status == "running").values(**values))
        return found
