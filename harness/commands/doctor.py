"""`dare-bench doctor`."""

from __future__ import annotations

from pathlib import Path

import click
from dare_bench.harness.commands.options import db_options


@click.command("doctor")
@db_options
def command(db: str | None, runs: Path, debug: bool) -> int:
    """Check this machine: packages, devices, torch, shipped weights and data, database. Exit code 1: a check fails."""
    from dare_bench.harness.checkup import checks
    from dare_bench.harness.commands.options import database

    failed = 0
    for check in checks(database(db, runs), runs):
        failed += not check.is_good
        click.echo(f"{'ok  ' if check.is_good else 'FAIL'}  {check.name:<14} {check.text}")
    click.echo("all checks passed" if not failed else f"{failed} checks failed")
    return 1 if failed else 0
