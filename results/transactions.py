"""Transactions of the store and the portable upsert."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from dare_bench.results.opening import BEGIN_OPTION, StoreError
from dare_bench.results.schema import STATUSES, Base
from sqlalchemy import Engine, exc, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

_INSERTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def now() -> datetime:
    """Current time.

    Returns:
        Aware datetime in UTC.
    """
    return datetime.now(UTC)


def insert_into(session: Session, model: type[Base]) -> Any:
    """INSERT of the session's database kind, which knows ON CONFLICT.

    Args:
        session: open session.
        model: mapped class.

    Returns:
        Insert construct with `on_conflict_do_update` and `on_conflict_do_nothing`.
    """
    return _INSERTS[session.get_bind().dialect.name](model.__table__)


class Transactions:
    """A connected database and its two kinds of transactions."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # Readers never wait for the write lock, and see one snapshot over all their queries.
        snapshot = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
        self._reader = engine.execution_options(**{BEGIN_OPTION: "DEFERRED"}, **snapshot)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """One short write transaction: committed at the end, rolled back by an exception.

        SQLite has one writer at a time: compute before, not inside.

        Yields:
            Session whose objects stay readable after the commit.

        Raises:
            StoreError: the database cannot be written (full disk, lock held longer than the busy timeout, lost server).
        """
        try:
            with Session(self.engine, expire_on_commit=False) as session, session.begin():
                yield session
        except exc.OperationalError as error:
            raise StoreError(
                f"cannot write to {self.engine.url.render_as_string()}: {error.orig}. Nothing of this step was stored; "
                "check the free disk space and what else uses the database, then run the same command again"
            ) from error

    @contextmanager
    def read(self) -> Iterator[Session]:
        """One snapshot for reading; it blocks nobody and waits for nobody.

        Yields:
            Session whose objects stay readable afterwards.
        """
        with Session(self._reader, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """Close all connections; the last one to close a SQLite database folds its -wal file in."""
        self.engine.dispose()

    def _begin_job(self, model: type[Base], fingerprint: str, columns: dict[str, Any], redo: bool) -> int:
        """Insert a job row as running, or set an unfinished one back to running; its children stay."""
        table = model.__table__
        values = {
            **columns,
            "fingerprint": fingerprint,
            "status": "running",
            "error": None,
            "started_at": now(),
            "finished_at": None,
        }
        with self.session() as session:
            insert = insert_into(session, model).values(**values)
            found = session.execute(
                insert.on_conflict_do_update(
                    index_elements=["fingerprint"],
                    set_={name: insert.excluded[name] for name in values if name != "fingerprint"},
                    where=None if redo else table.c.status != "done",
                ).returning(table.c.id)
            ).scalar()
        if found is None:
            raise StoreError(
                f"{table.name} {fingerprint[:12]} is already done and is never produced again; ask done() before begin"
            )
        return found

    def _finish_job(
        self, session: Session, model: type[Base], row_id: int, status: str, values: dict[str, Any]
    ) -> None:
        """Set the final status of a job row."""
        check_final(model, status, values.get("error"))
        table = model.__table__
        changed = session.execute(
            update(table).where(table.c.id == row_id).values(status=status, finished_at=now(), **values)
        )
        if not changed.rowcount:
            raise no_row(model, row_id)


def check_final(model: type[Base], status: str, error: str | None) -> None:
    """Refuse a final status that is none, or a failure without its reason.

    Args:
        model: mapped class of the job.
        status: "done" or "failed".
        error: message of the failure.

    Raises:
        StoreError: see above.
    """
    name = model.__tablename__
    if status not in STATUSES[1:]:
        raise StoreError(f"status {status!r} does not finish a {name}; allowed: {', '.join(STATUSES[1:])}")
    if status == "failed" and not error:
        raise StoreError(f"a failed {name} needs error=, the message that the leaderboard shows")
    if status == "done" and error:
        raise StoreError(f"a done {name} has no error, got {error!r}; finish it as failed")


def no_row(model: type[Base], row_id: int) -> StoreError:
    """Error for an id that does not exist.

    Args:
        model: mapped class.
        row_id: primary key asked for.

    Returns:
        The error to raise.
    """
    return StoreError(f"there is no {model.__tablename__} with id {row_id}; begin it first, in this database")


def count_rows(session: Session, column: Any, value: Any) -> int:
    """Number of rows whose column has a value.

    Args:
        session: open session.
        column: mapped column.
        value: what it must equal.

    Returns:
        Count.
    """
    return session.scalar(select(func.count()).where(column == value)) or 0
