"""`dare-bench publish`."""

from __future__ import annotations

from pathlib import Path

import click
from dare_bench.harness.commands.options import db_options, existing_store


@click.command("publish")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("site"), show_default=True, help="Folder of the site."
)
@click.option("--suite", help="Only this suite; default: all in the database.")
@db_options
def command(out: Path, suite: str | None, db: str | None, runs: Path, debug: bool) -> None:
    """Write the leaderboard as a static site that opens from the file system and needs no server."""
    from dare_bench.leaderboard.site import build

    with existing_store(db, runs) as store:
        index = build(store, out, suite=suite)
    click.echo(f"wrote {index}")
