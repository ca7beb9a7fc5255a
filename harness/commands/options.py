"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

DEFAULT_RUNS = Path("runs")


def db_options(function: Function) -> Function:
    """--db, --runs and --debug."""
    for option in (
        click.option("--debug", is_flag=True, help="Show tracebacks of errors."),
        click.option(
            "--runs",
            type=click.Path(path_type=Path, file_okay=False),
            default=DEFAULT_RUNS,
            show_default=True,
            help="Folder of checkpoints, logs and the default database.",
        ),
        click.option("--db", metavar="URL", help="Database; default sqlite:///RUNS/dare-bench.db."),
    ):
        function = option(function)
    return function


def suite_options(function: Function) -> Function:
    """Options of the verbs that read a suite."""
    for option in (
        click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a manifest value (YAML), repeatable."
        ),
        click.option("--limit", type=click.IntRange(min=1), help="Rows per benchmark."),
        click.option(
            "--jobs", type=click.IntRange(min=1), help="Worker processes; default: one per GPU, or per CPU core."
        ),
        click.option(
            "--ranks",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Processes that share one training job, a GPU each; the result is that of one.",
        ),
        click.option("--shard", is_flag=True, help="They shard weights and states (FSDP2) instead of copying them."),
        click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, or cuda:N[,cuda:M]."),
        click.option(
            "--data",
            type=click.Path(path_type=Path, file_okay=False, exists=True),
            help="Folder with local benchmark files (verified); default: the hub.",
        ),
    ):
        function = option(function)
    return db_options(click.argument("suite")(function))


def database(db: str | None, runs: Path) -> str:
    """The database URL; a plain file name is taken as SQLite."""
    if db is None:
        return f"sqlite:///{runs / 'dare-bench.db'}"
    return db if "://" in db else f"sqlite:///{db}"


def existing_store(db: str | None, runs: Path) -> Any:
    """Open a database that must exist.

    Raises:
        UserError: there is none yet.
    """
    from dare_bench.harness.errors import UserError
    from dare_bench.harness.prepare import open_store

    url = database(db, runs)
    store = open_store(url, create=False)
    if store is None:
        raise UserError(
            f"no results yet: {url} does not exist. Run a suite first (`dare-bench run smoke`), or give --db URL"
        )
    return store
