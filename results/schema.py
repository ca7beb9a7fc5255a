"""Tables of the results database.

Every aggregate shown anywhere is recomputed from `Sample` and `Score` rows; nothing here stores an accuracy.
Fingerprints (sha256 hex, 64 characters) are the natural keys: a row with `status == "done"` is never produced again.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Float, ForeignKey, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

JsonType = JSON().with_variant(JSONB(), "postgresql")

#: Life of a job row. A row that a killed process left "running" is marked "failed" by `Store.interrupted(mark=True)`.
STATUSES = ("running", "done", "failed")

#: Outcome of one sample (all but `error` stay in the denominator).
SAMPLE_STATUSES = ("scored", "no_answer", "truncated", "timeout", "error")


class Base(DeclarativeBase):
    """Declarative base of all tables."""


class Environment(Base):
    """Machine and software that produced a row: git, packages, devices, dtype, threads."""

    __tablename__ = "environment"
    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    data: Mapped[dict[str, Any]] = mapped_column(JsonType)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class SuiteRun(Base):
    """One invocation of `dare-bench run` on a manifest."""

    __tablename__ = "suite_run"
    id: Mapped[int] = mapped_column(primary_key=True)
    suite: Mapped[str] = mapped_column(String(128), index=True)
    manifest_hash: Mapped[str] = mapped_column(String(64))
    manifest_text: Mapped[str] = mapped_column(Text)
    resolved: Mapped[dict[str, Any]] = mapped_column(JsonType)
    command_line: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(16))
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environment.id"))
    started_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    finished_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    cells: Mapped[list[Cell]] = relationship(
        back_populates="suite_run", cascade="all, delete-orphan", order_by="Cell.id"
    )


class TrainingRun(Base):
    """One (base checkpoint, algorithm, recipe, data, seed): the parent of checkpoints."""

    __tablename__ = "training_run"
    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    model: Mapped[str] = mapped_column(String(128), index=True)
    family: Mapped[str] = mapped_column(String(32))
    algorithm: Mapped[str] = mapped_column(String(64))
    label: Mapped[str] = mapped_column(String(128))
    preset: Mapped[str | None] = mapped_column(String(32))
    seed: Mapped[int] = mapped_column(Integer)
    config: Mapped[dict[str, Any]] = mapped_column(JsonType)
    status: Mapped[str] = mapped_column(String(16))
    error: Mapped[str | None] = mapped_column(Text)
    log_path: Mapped[str | None] = mapped_column(Text)
    totals: Mapped[dict[str, Any]] = mapped_column(JsonType, default=dict)
    wall_s: Mapped[float | None] = mapped_column(Float)
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environment.id"))
    started_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    finished_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    points: Mapped[list[TrainingPoint]] = relationship(back_populates="training_run", cascade="all, delete-orphan")
    checkpoints: Mapped[list[Checkpoint]] = relationship(back_populates="training_run", cascade="all, delete-orphan")


class TrainingPoint(Base):
    """Metrics of one optimiser step; `metrics` holds determined values, `timing` wall times."""

    __tablename__ = "training_point"
    __table_args__ = (UniqueConstraint("training_run_id", "step"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    training_run_id: Mapped[int] = mapped_column(ForeignKey("training_run.id", ondelete="CASCADE"))
    step: Mapped[int] = mapped_column(Integer)
    metrics: Mapped[dict[str, Any]] = mapped_column(JsonType)
    timing: Mapped[dict[str, Any]] = mapped_column(JsonType, default=dict)
    training_run: Mapped[TrainingRun] = relationship(back_populates="points")


class Checkpoint(Base):
    """A finished set of weights on disk (the evaluated one has `is_final`)."""

    __tablename__ = "checkpoint"
    __table_args__ = (UniqueConstraint("training_run_id", "step"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    training_run_id: Mapped[int] = mapped_column(ForeignKey("training_run.id", ondelete="CASCADE"))
    step: Mapped[int] = mapped_column(Integer)
    path: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(String(64))
    is_final: Mapped[bool] = mapped_column(default=False)
    training_run: Mapped[TrainingRun] = relationship(back_populates="checkpoints")


class Evaluation(Base):
    """Generations of one checkpoint on one benchmark protocol with one decoder (and seed, if it draws)."""

    __tablename__ = "evaluation"
    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    training_run_id: Mapped[int | None] = mapped_column(ForeignKey("training_run.id"))  # null: an untrained base model
    model: Mapped[str] = mapped_column(String(128), index=True)
    family: Mapped[str] = mapped_column(String(32))
    benchmark: Mapped[str] = mapped_column(String(64), index=True)
    protocol: Mapped[str] = mapped_column(String(64))
    decoder: Mapped[dict[str, Any]] = mapped_column(JsonType)
    seed: Mapped[int | None] = mapped_column(Integer)  # null: nothing is drawn (greedy)
    hard_key: Mapped[str] = mapped_column(String(32), index=True)
    hard_fields: Mapped[dict[str, Any]] = mapped_column(JsonType)
    numerics: Mapped[dict[str, Any]] = mapped_column(JsonType)
    data: Mapped[dict[str, Any]] = mapped_column(JsonType)  # dataset id, revision/checksum, split, limit
    n_expected: Mapped[int] = mapped_column(Integer)
    status: Mapped[str] = mapped_column(String(16))
    error: Mapped[str | None] = mapped_column(Text)
    log_path: Mapped[str | None] = mapped_column(Text)
    decode_wall_s: Mapped[float | None] = mapped_column(Float)  # decoding only, summed over batches
    wall_s: Mapped[float | None] = mapped_column(Float)  # the whole job
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environment.id"))
    started_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    finished_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    samples: Mapped[list[Sample]] = relationship(back_populates="evaluation", cascade="all, delete-orphan")
    scorings: Mapped[list[Scoring]] = relationship(back_populates="evaluation", cascade="all, delete-orphan")


class Sample(Base):
    """One generated answer with its cost."""

    __tablename__ = "sample"
    __table_args__ = (UniqueConstraint("evaluation_id", "sample_id", "repeat"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    evaluation_id: Mapped[int] = mapped_column(ForeignKey("evaluation.id", ondelete="CASCADE"), index=True)
    sample_id: Mapped[str] = mapped_column(String(128))
    repeat: Mapped[int] = mapped_column(Integer, default=0)
    prompt: Mapped[str] = mapped_column(Text)  # as sent, after the chat template
    question: Mapped[str] = mapped_column(Text)
    gold: Mapped[str] = mapped_column(Text)
    cluster: Mapped[str | None] = mapped_column(String(128))  # rows of one cluster are not independent
    text: Mapped[str] = mapped_column(Text)
    finish_reason: Mapped[str] = mapped_column(String(16))  # stop | length
    nfe: Mapped[int] = mapped_column(Integer)
    row_forwards: Mapped[int] = mapped_column(Integer)
    positions_fed: Mapped[int] = mapped_column(BigInteger)
    kv_read: Mapped[int] = mapped_column(BigInteger)
    tokens_committed: Mapped[int] = mapped_column(Integer)
    tokens_text: Mapped[int] = mapped_column(Integer)
    edits: Mapped[int] = mapped_column(Integer, default=0)
    flops: Mapped[float] = mapped_column(Float)
    wall_s: Mapped[float] = mapped_column(Float)
    evaluation: Mapped[Evaluation] = relationship(back_populates="samples")
    trajectory: Mapped[Trajectory | None] = relationship(
        back_populates="sample", cascade="all, delete-orphan", uselist=False
    )
    scores: Mapped[list[Score]] = relationship(back_populates="sample", cascade="all, delete-orphan")


class Trajectory(Base):
    """How a sample was denoised: token pieces and the forward that committed each of them."""

    __tablename__ = "trajectory"
    sample_pk: Mapped[int] = mapped_column(ForeignKey("sample.id", ondelete="CASCADE"), primary_key=True)
    token_ids: Mapped[list[int]] = mapped_column(JsonType)
    pieces: Mapped[list[str]] = mapped_column(JsonType)
    step_map: Mapped[list[int]] = mapped_column(JsonType)
    confidence: Mapped[list[float] | None] = mapped_column(JsonType)
    convention: Mapped[str] = mapped_column(String(32))
    block_starts: Mapped[list[int]] = mapped_column(JsonType)
    kinds: Mapped[list[str]] = mapped_column(
        JsonType
    )  # one entry per forward: denoise | prefill+denoise | store+denoise
    sample: Mapped[Sample] = relationship(back_populates="trajectory")


class Scoring(Base):
    """One scorer version applied to one evaluation; re-scoring adds a row and generates nothing."""

    __tablename__ = "scoring"
    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    evaluation_id: Mapped[int] = mapped_column(ForeignKey("evaluation.id", ondelete="CASCADE"), index=True)
    scorer: Mapped[str] = mapped_column(String(64))
    scorer_version: Mapped[int] = mapped_column(Integer)
    status: Mapped[str] = mapped_column(String(16))
    error: Mapped[str | None] = mapped_column(Text)
    finished_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    evaluation: Mapped[Evaluation] = relationship(back_populates="scorings")
    scores: Mapped[list[Score]] = relationship(back_populates="scoring", cascade="all, delete-orphan")


class Score(Base):
    """Verdict of one scoring on one sample. `value` is in [0, 1] and is the headline (strict) metric."""

    __tablename__ = "score"
    __table_args__ = (UniqueConstraint("scoring_id", "sample_pk"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    scoring_id: Mapped[int] = mapped_column(ForeignKey("scoring.id", ondelete="CASCADE"), index=True)
    sample_pk: Mapped[int] = mapped_column(ForeignKey("sample.id", ondelete="CASCADE"), index=True)
    value: Mapped[float] = mapped_column(Float)
    metrics: Mapped[dict[str, float]] = mapped_column(JsonType)  # all metrics, e.g. {"strict": 0, "value": 1}
    extracted: Mapped[str | None] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(16))
    detail: Mapped[str | None] = mapped_column(Text)  # why, in words (scorer trace)
    scoring: Mapped[Scoring] = relationship(back_populates="scores")
    sample: Mapped[Sample] = relationship(back_populates="scores")


class Cell(Base):
    """A cell of a suite's grid: which training run and evaluation answer it."""

    __tablename__ = "cell"
    __table_args__ = (
        UniqueConstraint("suite_run_id", "name"),
        Index("ix_cell_training", "training_fingerprint"),
        Index("ix_cell_evaluation", "evaluation_fingerprint"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    suite_run_id: Mapped[int] = mapped_column(ForeignKey("suite_run.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(256))  # model/label/benchmark/decoder/seed
    model: Mapped[str] = mapped_column(String(128))
    label: Mapped[str] = mapped_column(String(128))  # algorithm label; "base" for the untrained model
    algorithm: Mapped[str] = mapped_column(String(64))
    benchmark: Mapped[str] = mapped_column(String(64))
    decoder: Mapped[str] = mapped_column(String(64))
    seed: Mapped[int] = mapped_column(Integer)
    training_fingerprint: Mapped[str | None] = mapped_column(String(64))
    evaluation_fingerprint: Mapped[str] = mapped_column(String(64))
    scoring_fingerprint: Mapped[str] = mapped_column(String(64))
    suite_run: Mapped[SuiteRun] = relationship(back_populates="cells")
