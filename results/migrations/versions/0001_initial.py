"""Tables of the first release.

Revision ID: 0001
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

JSON_TYPE = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

# Parents after their children: the order in which tables can be dropped.
TABLES = (
    "trajectory",
    "score",
    "scoring",
    "sample",
    "training_point",
    "checkpoint",
    "evaluation",
    "cell",
    "training_run",
    "suite_run",
    "environment",
)


def upgrade() -> None:
    """Create all tables and indexes."""
    op.create_table(
        "environment",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("data", JSON_TYPE, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("fingerprint"),
    )
    op.create_table(
        "suite_run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("suite", sa.String(length=128), nullable=False),
        sa.Column("manifest_hash", sa.String(length=64), nullable=False),
        sa.Column("manifest_text", sa.Text(), nullable=False),
        sa.Column("resolved", JSON_TYPE, nullable=False),
        sa.Column("command_line", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environment.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_suite_run_suite"), "suite_run", ["suite"], unique=False)
    op.create_table(
        "training_run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("family", sa.String(length=32), nullable=False),
        sa.Column("algorithm", sa.String(length=64), nullable=False),
        sa.Column("label", sa.String(length=128), nullable=False),
        sa.Column("preset", sa.String(length=32), nullable=True),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("config", JSON_TYPE, nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("log_path", sa.Text(), nullable=True),
        sa.Column("totals", JSON_TYPE, nullable=False),
        sa.Column("wall_s", sa.Float(), nullable=True),
        sa.Column("environment_id", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environment.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("fingerprint"),
    )
    op.create_index(op.f("ix_training_run_model"), "training_run", ["model"], unique=False)
    op.create_table(
        "cell",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("suite_run_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("label", sa.String(length=128), nullable=False),
        sa.Column("algorithm", sa.String(length=64), nullable=False),
        sa.Column("benchmark", sa.String(length=64), nullable=False),
        sa.Column("decoder", sa.String(length=64), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("training_fingerprint", sa.String(length=64), nullable=True),
        sa.Column("evaluation_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("scoring_fingerprint", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["suite_run_id"], ["suite_run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("suite_run_id", "name"),
    )
    op.create_index("ix_cell_evaluation", "cell", ["evaluation_fingerprint"], unique=False)
    op.create_index("ix_cell_training", "cell", ["training_fingerprint"], unique=False)
    op.create_table(
        "checkpoint",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("training_run_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("is_final", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["training_run_id"], ["training_run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("training_run_id", "step"),
    )
    op.create_table(
        "evaluation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("training_run_id", sa.Integer(), nullable=True),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("family", sa.String(length=32), nullable=False),
        sa.Column("benchmark", sa.String(length=64), nullable=False),
        sa.Column("protocol", sa.String(length=64), nullable=False),
        sa.Column("decoder", JSON_TYPE, nullable=False),
        sa.Column("seed", sa.Integer(), nullable=True),
        sa.Column("hard_key", sa.String(length=32), nullable=False),
        sa.Column("hard_fields", JSON_TYPE, nullable=False),
        sa.Column("numerics", JSON_TYPE, nullable=False),
        sa.Column("data", JSON_TYPE, nullable=False),
        sa.Column("n_expected", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("log_path", sa.Text(), nullable=True),
        sa.Column("decode_wall_s", sa.Float(), nullable=True),
        sa.Column("wall_s", sa.Float(), nullable=True),
        sa.Column("environment_id", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environment.id"],
        ),
        sa.ForeignKeyConstraint(
            ["training_run_id"],
            ["training_run.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("fingerprint"),
    )
    op.create_index(op.f("ix_evaluation_benchmark"), "evaluation", ["benchmark"], unique=False)
    op.create_index(op.f("ix_evaluation_hard_key"), "evaluation", ["hard_key"], unique=False)
    op.create_index(op.f("ix_evaluation_model"), "evaluation", ["model"], unique=False)
    op.create_table(
        "training_point",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("training_run_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("metrics", JSON_TYPE, nullable=False),
        sa.Column("timing", JSON_TYPE, nullable=False),
        sa.ForeignKeyConstraint(["training_run_id"], ["training_run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("training_run_id", "step"),
    )
    op.create_table(
        "sample",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("evaluation_id", sa.Integer(), nullable=False),
        sa.Column("sample_id", sa.String(length=128), nullable=False),
        sa.Column("repeat", sa.Integer(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("gold", sa.Text(), nullable=False),
        sa.Column("cluster", sa.String(length=128), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("finish_reason", sa.String(length=16), nullable=False),
        sa.Column("nfe", sa.Integer(), nullable=False),
        sa.Column("row_forwards", sa.Integer(), nullable=False),
        sa.Column("positions_fed", sa.BigInteger(), nullable=False),
        sa.Column("kv_read", sa.BigInteger(), nullable=False),
        sa.Column("tokens_committed", sa.Integer(), nullable=False),
        sa.Column("tokens_text", sa.Integer(), nullable=False),
        sa.Column("edits", sa.Integer(), nullable=False),
        sa.Column("flops", sa.Float(), nullable=False),
        sa.Column("wall_s", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["evaluation_id"], ["evaluation.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("evaluation_id", "sample_id", "repeat"),
    )
    op.create_index(op.f("ix_sample_evaluation_id"), "sample", ["evaluation_id"], unique=False)
    op.create_table(
        "scoring",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("evaluation_id", sa.Integer(), nullable=False),
        sa.Column("scorer", sa.String(length=64), nullable=False),
        sa.Column("scorer_version", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["evaluation_id"], ["evaluation.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("fingerprint"),
    )
    op.create_index(op.f("ix_scoring_evaluation_id"), "scoring", ["evaluation_id"], unique=False)
    op.create_table(
        "score",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("scoring_id", sa.Integer(), nullable=False),
        sa.Column("sample_pk", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("metrics", JSON_TYPE, nullable=False),
        sa.Column("extracted", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["sample_pk"], ["sample.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["scoring_id"], ["scoring.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("scoring_id", "sample_pk"),
    )
    op.create_index(op.f("ix_score_sample_pk"), "score", ["sample_pk"], unique=False)
    op.create_index(op.f("ix_score_scoring_id"), "score", ["scoring_id"], unique=False)
    op.create_table(
        "trajectory",
        sa.Column("sample_pk", sa.Integer(), nullable=False),
        sa.Column("token_ids", JSON_TYPE, nullable=False),
        sa.Column("pieces", JSON_TYPE, nullable=False),
        sa.Column("step_map", JSON_TYPE, nullable=False),
        sa.Column("confidence", JSON_TYPE, nullable=True),
        sa.Column("convention", sa.String(length=32), nullable=False),
        sa.Column("block_starts", JSON_TYPE, nullable=False),
        sa.Column("kinds", JSON_TYPE, nullable=False),
        sa.ForeignKeyConstraint(["sample_pk"], ["sample.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("sample_pk"),
    )


def downgrade() -> None:
    """Drop all tables (their indexes go with them)."""
    for table in TABLES:
        op.drop_table(table)
