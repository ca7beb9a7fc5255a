"""Alembic environment: migrates the connection handed over by `dare_bench.results.migrations.run`."""

from alembic import context
from dare_bench.results.schema import Base

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    compare_type=True,
    # SQLite cannot alter most things in place; batch mode copies the table.
    render_as_batch=connection.dialect.name == "sqlite",
)
# The caller holds one transaction around everything; Alembic must not commit halfway.
context.run_migrations()
