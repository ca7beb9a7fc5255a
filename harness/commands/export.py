"""`dare-bench export FILE`."""

from __future__ import annotations

from pathlib import Path

import click
from dare_bench.harness.commands.options import db_options, existing_store


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--suite", help="Only this suite; default: all in the database.")
@click.option("--format", "form", type=click.Choice(["json", "csv", "jsonl"]), help="Default: by the file's suffix.")
@click.option("--trajectories", is_flag=True, help="For jsonl: with the order in which tokens were committed.")
@db_options
def command(
    file: Path, suite: str | None, form: str | None, trajectories: bool, db: str | None, runs: Path, debug: bool
) -> None:
    """Write results to FILE: json (everything but samples), csv (one line per cell) or jsonl (one line per sample)."""
    from dare_bench.results.export import export

    with existing_store(db, runs) as store:
        path = export(store, file, suite, form=form, trajectories=trajectories)
    click.echo(f"wrote {path}")
