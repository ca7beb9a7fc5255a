"""Run the migrations on an open connection."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def config(connection: Connection | None = None) -> Config:
    """Alembic configuration for the scripts beside this file, wherever the package is installed.

    Args:
        connection: the connection that `env.py` migrates; its owner holds the transaction.

    Returns:
        Configuration without an ini file.
    """
    made = Config()
    # `%` starts an interpolation in Alembic's configuration and may occur in a path.
    made.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    made.attributes["connection"] = connection
    return made


def upgrade(connection: Connection) -> None:
    """Bring the database to the newest revision inside the caller's transaction.

    Args:
        connection: open connection with a transaction begun.
    """
    command.upgrade(config(connection), "head")
