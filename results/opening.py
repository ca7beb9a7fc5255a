"""Opening the results database: which places are accepted, connection settings, schema revision.

Alembic is imported only when the stored revision is not the newest one: opening an up-to-date database is cheap.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dare_bench.results.keys import to_json
from dare_bench.results.migrations import HEAD, REVISIONS
from dare_bench.results.schema import Base
from sqlalchemy import Connection, Engine, create_engine, event, exc, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import StaticPool

#: How long a writer waits for another one before it gives up.
BUSY_TIMEOUT_S = 60

#: Execution option of an engine: "IMMEDIATE" takes the write lock at once, "DEFERRED" reads a snapshot.
BEGIN_OPTION = "dare_bench_begin"

# Connections that a fork carried here: kept, because closing one would clean up files that the parent still uses.
_CARRIED: list[Any] = []

_SQLITE_HEADER = b"SQLite format 3\x00"
_MIGRATION_LOCK = 0x64617265  # any constant: key of the PostgreSQL advisory lock around a migration


class StoreError(Exception):
    """The results database cannot be used as asked; the message says why and what to do."""


def open_engine(url: str, *, create: bool = True) -> Engine:
    """Connect to a results database and bring its schema to the newest revision.

    Args:
        url: ``sqlite:///relative/path.db``, ``sqlite:////absolute/path.db`` or ``postgresql://user@host/name``.
        create: make the SQLite file (and its folder) when there is none.

    Returns:
        Engine; SQLite connections use WAL, foreign keys, a busy timeout of 60 s and ``synchronous=NORMAL``.

    Raises:
        StoreError: the place cannot be used, is not a dare-bench database, or was written by a newer dare-bench.
    """
    parsed = _parse(url)
    shown = parsed.render_as_string(hide_password=True)
    if parsed.get_backend_name() == "sqlite":
        _check_sqlite_place(parsed, create)
    try:
        engine = _make_engine(parsed)
    except ModuleNotFoundError as error:
        raise StoreError(
            f"{shown} needs the Python package {error.name!r}: pip install 'dare-bench[postgres]'"
        ) from error
    try:
        _migrate(engine, shown)
    except exc.DBAPIError as error:
        engine.dispose()
        raise StoreError(
            f"cannot open the results database {shown}: {error.orig}. "
            "Check that the place exists, is writable and holds a dare-bench database, or pass another --db URL"
        ) from error
    except BaseException:
        engine.dispose()
        raise
    return engine


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except exc.ArgumentError as error:
        raise StoreError(
            f"{url!r} is not a database URL. Allowed: sqlite:///PATH or postgresql://USER@HOST/NAME. "
            f"For a file write sqlite:///{url}"
        ) from error
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise StoreError(
            f"database kind {parsed.get_backend_name()!r} is not supported. "
            "Allowed: sqlite:///PATH or postgresql://USER@HOST/NAME"
        )
    return parsed


def _in_memory(url: URL) -> bool:
    return url.database in (None, "", ":memory:")


def _check_sqlite_place(url: URL, create: bool) -> None:
    """Refuse a place where a SQLite database cannot be, before the driver gives its one vague message for all."""
    if _in_memory(url):
        return
    path = Path(str(url.database))
    if path.is_dir():
        raise StoreError(
            f"{path} is a directory; the results database is a file: try sqlite:///{path / 'dare-bench.db'}"
        )
    if not path.exists():
        if not create:
            raise StoreError(f"there is no results database at {path}; run a suite first or pass --db with its URL")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make the folder {path.parent} for the results database: {error.strerror or error}. "
                "Pass --db with a place you may write to"
            ) from error
    elif path.stat().st_size:
        try:
            with path.open("rb") as file:
                header = file.read(len(_SQLITE_HEADER))
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
        if header != _SQLITE_HEADER:
            raise StoreError(
                f"{path} is not a SQLite database (it begins with {header[:8]!r}); it was left untouched. "
                "Pass --db with another file"
            )
    # SQLite needs the folder too: its -wal and -shm files lie beside the database.
    for place in (path if path.exists() else path.parent, path.parent):
        if not os.access(place, os.W_OK):
            raise StoreError(f"{place} is not writable; pass --db with a place you may write to")


def _make_engine(url: URL) -> Engine:
    options: dict[str, Any] = {"json_serializer": to_json}
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True, **options)
    options["connect_args"] = {"timeout": BUSY_TIMEOUT_S}
    if _in_memory(url):
        options["poolclass"] = StaticPool
        options["connect_args"]["check_same_thread"] = False
    engine = create_engine(url, **options)
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "checkout", _on_checkout)
    event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, record: Any) -> None:
    # Autocommit in the driver: transactions are begun by `_on_begin` only, DDL included.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
    record.info["pid"] = os.getpid()


def _on_checkout(connection: Any, record: Any, proxy: Any) -> None:
    """Never use a connection that a fork carried into another process: SQLite's locks do not survive it."""
    if record.info["pid"] != os.getpid():
        _CARRIED.append(connection)
        record.dbapi_connection = proxy.dbapi_connection = None
        raise exc.DisconnectionError("connection belongs to another process")


def _on_begin(connection: Connection) -> None:
    # A deferred transaction that reads first and writes later fails at once when another process wrote in
    # between (no busy timeout applies to an outdated snapshot); taking the write lock at the start waits instead.
    mode = connection.get_execution_options().get(BEGIN_OPTION, "IMMEDIATE")
    connection.exec_driver_sql(f"BEGIN {mode}")


def _stored_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _migrate(engine: Engine, shown: str) -> None:
    reader = engine.execution_options(**{BEGIN_OPTION: "DEFERRED"})
    with reader.connect() as connection:
        if _stored_revision(connection) == HEAD:
            return
    # One transaction, DDL included, under the write lock: a second process waits and then finds nothing left to do.
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        stored = _stored_revision(connection)
        if stored == HEAD:
            return
        _check_revision(connection, stored, shown)
        from dare_bench.results.migrations.run import upgrade

        upgrade(connection)


def _check_revision(connection: Connection, stored: str | None, shown: str) -> None:
    if stored is None:
        present = set(inspect(connection).get_table_names())
        # A PostgreSQL schema may be shared with other programs; a SQLite file is ours alone.
        foreign = present if connection.dialect.name == "sqlite" else present & set(Base.metadata.tables)
        if foreign:
            raise StoreError(
                f"{shown} holds tables of another program ({', '.join(sorted(foreign)[:5])}); it was left untouched. "
                "Pass --db with another database"
            )
    elif stored not in REVISIONS:
        raise StoreError(
            f"{shown} has schema revision {stored!r}, which this dare-bench does not know (newest: {HEAD!r}): a newer "
            "version wrote it. Update dare-bench or pass --db with another database; nothing was changed"
        )
