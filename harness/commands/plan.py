"""`dare-bench plan SUITE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from dare_bench.harness.commands.options import database, suite_options


@click.command("plan")
@suite_options
@click.option(
    "--device-memory",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GIB",
    help="Plan for GPUs of this memory, which need not be here.",
)
@click.option("--devices", type=click.IntRange(min=1), help="How many of them.  [default: 1]")
def command(suite: str, db: str | None, runs: Path, debug: bool, **options: Any) -> None:
    """Show what `run` would do: cells, what is stored, memory, what is missing. Starts and writes nothing."""
    from dare_bench.harness.plan import render
    from dare_bench.harness.prepare import Options, prepare

    click.echo(render(prepare(Options(suite, database(db, runs), runs, **options), is_offline=True)))
