"""Which places are accepted, what is refused and how; migrations."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dare_bench.results import migrations
from dare_bench.results.opening import BUSY_TIMEOUT_S
from dare_bench.results.schema import Base
from dare_bench.results.store import Store, StoreError
from sqlalchemy import text


def python(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_connections_are_set_up(store: Store) -> None:
    with store.read() as session:
        for pragma, expected in [
            ("journal_mode", "wal"),
            ("foreign_keys", 1),
            ("busy_timeout", BUSY_TIMEOUT_S * 1000),
            ("synchronous", 1),
        ]:
            assert session.execute(text(f"PRAGMA {pragma}")).scalar() == expected, pragma


def test_deleting_a_parent_deletes_its_children(store: Store, fill: Any) -> None:
    fill(store, "1", [1.0, 0.0])
    with store.session() as session:
        session.execute(text("DELETE FROM evaluation"))
    with store.read() as session:
        for table in ("sample", "trajectory", "scoring", "score"):
            assert session.execute(text(f"SELECT count(*) FROM {table}")).scalar() == 0, table


def test_the_migrated_schema_is_the_declared_one(store: Store) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_the_migration_makes_every_constraint(store: Store, tmp_path: Path) -> None:
    """`compare_metadata` sees no cascades: compare with the tables that the metadata makes directly."""
    from dare_bench.results.opening import open_engine
    from sqlalchemy import create_engine, inspect

    direct = create_engine(f"sqlite:///{tmp_path / 'direct.db'}")
    Base.metadata.create_all(direct)
    migrated = open_engine(str(store.engine.url), create=False)
    left, right = inspect(direct), inspect(migrated)
    assert set(right.get_table_names()) - set(left.get_table_names()) == {"alembic_version"}
    for table in left.get_table_names():
        for kind in ("get_columns", "get_foreign_keys", "get_unique_constraints", "get_indexes", "get_pk_constraint"):
            found = [getattr(side, kind)(table) for side in (left, right)]
            # constraints have no order; a primary key is a dict
            rows = [sorted(map(repr, one.items() if isinstance(one, dict) else one)) for one in found]
            assert rows[0] == rows[1], (table, kind)
    direct.dispose()
    migrated.dispose()


def test_known_revisions_are_the_files() -> None:
    from alembic.script import ScriptDirectory
    from dare_bench.results.migrations.run import config

    scripts = ScriptDirectory.from_config(config())
    assert [script.revision for script in scripts.walk_revisions()][::-1] == list(migrations.REVISIONS)
    assert scripts.get_heads() == [migrations.HEAD]


def test_downgrade_leaves_no_table(store: Store) -> None:
    from alembic import command
    from dare_bench.results.migrations.run import config

    with store.engine.begin() as connection:
        command.downgrade(config(connection), "base")
    with store.read() as session:
        left = session.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars().all()
    assert left == ["alembic_version"]


def test_an_up_to_date_database_opens_without_alembic_and_nothing_imports_torch(url: str) -> None:
    Store.open(url).close()
    code = (
        "import sys; from dare_bench.results.store import Store; Store.open(sys.argv[1]).close(); "
        "print([name for name in ('alembic', 'torch', 'numpy') if name in sys.modules])"
    )
    assert python(code, url) == "[]"


def test_the_whole_room_imports_without_torch() -> None:
    folder = Path(sys.modules["dare_bench.results"].__file__ or "").parent
    names = [f"dare_bench.results.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]
    assert "dare_bench.results.store" in names
    code = (
        "import importlib, sys; sys.modules['torch'] = None\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print(len(sys.argv) - 1)"
    )
    assert python(code, *names, "dare_bench.results.migrations.run") == str(len(names) + 1)


def test_opening_an_up_to_date_database_changes_no_byte(url: str, store: Store) -> None:
    path = Path(str(store.engine.url.database))
    store.close()
    before = path.read_bytes()
    Store.open(url, create=False).close()
    assert path.read_bytes() == before


def test_a_newer_database_is_refused(url: str, store: Store) -> None:
    with store.session() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0099'"))
    with pytest.raises(StoreError, match=r"revision '0099', which this dare-bench does not know \(newest: '0001'\)"):
        Store.open(url)
    with store.read() as session:
        assert session.execute(text("SELECT version_num FROM alembic_version")).scalar() == "0099"


@pytest.mark.parametrize("content", [b"suite: mini\n" * 400, b"x", b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "results.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"results\.db.*(is not a SQLite database|file is not a database)"):
        Store.open(f"sqlite:///{path}")
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "places.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (id INTEGER)")
    connection.close()
    with pytest.raises(StoreError, match=r"tables of another program \(bookmarks\)"):
        Store.open(f"sqlite:///{path}")


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    path.touch()
    with Store.open(f"sqlite:///{path}") as store:
        assert store.done("training", ["x"]) == set()


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"is a directory.*sqlite:///.*dare-bench\.db"):
        Store.open(f"sqlite:///{tmp_path}")


def test_a_missing_database_is_refused_for_reading(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no results database at .*absent\.db; run a suite first"):
        Store.open(f"sqlite:///{tmp_path / 'sub' / 'absent.db'}", create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot make the folder .*file.*: (Not a directory|File exists)"):
        Store.open(f"sqlite:///{tmp_path / 'file' / 'results.db'}")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, a place where nobody can make files")
def test_an_unwritable_place_is_refused_even_for_root() -> None:
    with pytest.raises(StoreError, match=r"cannot open the results database|not writable"):
        Store.open("sqlite:////proc/results.db")


def test_a_read_only_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write everywhere: ask as somebody else would be answered.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(StoreError, match="is not writable; pass --db"):
        Store.open(f"sqlite:///{tmp_path / 'results.db'}")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("runs/results.db", r"not a database URL.*write sqlite:///runs/results\.db"),
        ("mysql://host/name", "kind 'mysql' is not supported.*postgresql://"),
    ],
)
def test_other_urls_are_refused(bad: str, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        Store.open(bad)


def test_a_password_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"postgresql\+psycopg://me:\*\*\*@nowhere/db needs .*dare-bench\[postgres\]"):
        Store.open("postgres://me:secret@nowhere/db")


def test_a_database_in_memory(make: SimpleNamespace, fill: Any) -> None:
    with Store.open("sqlite://") as store:
        fill(store, "1", [1.0])
        assert store.done("scoring", ["s1"]) == {"s1"}


def test_statements_of_the_tables_suit_postgresql() -> None:
    """No server here: at least every table compiles, with JSONB (plain JSON could not be grouped)."""
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateTable

    made = [str(CreateTable(table).compile(dialect=postgresql.dialect())) for table in Base.metadata.sorted_tables]
    assert sum(statement.count("JSONB") for statement in made) >= 15
    assert not any(" JSON " in statement or " JSON," in statement for statement in made)
