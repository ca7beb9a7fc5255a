"""`dare-bench run SUITE`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click
from dare_bench.harness.commands.options import database, suite_options

#: Columns of the table where there is no terminal.
TABLE_WIDTH = 160


@click.command("run")
@suite_options
def command(suite: str, db: str | None, runs: Path, debug: bool, **options: Any) -> int:
    """Train, generate and score every cell of SUITE that is not done yet, then print the table.

    SUITE is a manifest file or the name of a shipped suite (`dare-bench list suites`). The same command after a crash
    or an interruption goes on where it stopped; when all is done it only prints the table. Exit code 1: a job failed.
    """
    from dare_bench.harness.executors.local import NOT_RUN
    from dare_bench.harness.prepare import Options, open_store
    from dare_bench.harness.running import run_suite
    from rich.console import Console

    url = database(db, runs)
    typed = " ".join(["dare-bench", *(shlex.quote(word) for word in sys.argv[1:])])
    prepared, failures = run_suite(Options(suite, url, runs, **options), typed, Console(stderr=True))
    from dare_bench.leaderboard.text import table

    store = open_store(url, create=False)
    assert store is not None
    with store:
        console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
        console.print(table(store, prepared.suite.name))
    causes = {label: error for label, error in failures.items() if not error.startswith(NOT_RUN)}
    for label, error in causes.items():
        click.echo(f"FAILED {label}: {error}", err=True)
    if failures:
        blocked = len(failures) - len(causes)
        todo = f"{len(causes)} of {len(prepared.pending)} jobs failed" + (
            f", {blocked} more need them" if blocked else ""
        )
        click.echo(f"{todo}; logs: {runs / 'logs'}. The same command tries them again.", err=True)
    return 1 if failures else 0
