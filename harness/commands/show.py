"""`dare-bench show CELL`."""

from __future__ import annotations

from pathlib import Path

import click
from dare_bench.harness.commands.options import db_options, existing_store


@click.command("show")
@click.argument("cell")
@click.option("--suite", help="Suite to look in; default: all.")
@click.option("--samples", type=click.IntRange(min=0), default=3, show_default=True, help="Answers to print.")
@db_options
def command(cell: str, suite: str | None, samples: int, db: str | None, runs: Path, debug: bool) -> None:
    """Show CELL (model/algorithm/benchmark/decoder/seed): settings, scores, cost and a few answers."""
    from dare_bench.harness.cellview import find_cell, render

    with existing_store(db, runs) as store:
        click.echo(render(store, find_cell(store, cell, suite), samples))
