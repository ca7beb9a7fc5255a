"""What the pages need from the database, read in a constant number of queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from dare_bench.results.schema import (
    Cell,
    Checkpoint,
    Environment,
    Evaluation,
    Sample,
    Score,
    Scoring,
    SuiteRun,
    TrainingPoint,
    TrainingRun,
)
from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

T = TypeVar("T")

#: SQLite allows 32,766 bound variables and PostgreSQL 65,535; lists of fingerprints are asked for in pieces.
_CHUNK = 500


class HasSession(Protocol):
    """The part of `results.store.Store` that reading needs."""

    def session(self) -> AbstractContextManager[Session]:
        """One short transaction."""
        ...


@dataclass(frozen=True)
class Totals:
    """Sums over the samples of one evaluation.

    Attributes:
        n: samples stored. questions: distinct questions (repeats counted once). nfe: forwards. tokens: committed tokens
        before the first end token. flops: floating point operations.
    """

    n: int = 0
    questions: int = 0
    nfe: int = 0
    tokens: int = 0
    flops: float = 0.0


@dataclass(frozen=True)
class Snapshot:
    """Rows behind the newest run of every suite.

    Attributes:
        suites: newest `suite_run` per suite, sorted by name.
        cells: their cells, in the order of the grid.
        trainings, evaluations, scorings: fingerprint -> row.
        environments: id -> environment data.
        totals: evaluation id -> sums over its samples.
        rates: scoring id -> mean headline score.
        value_rates: scoring id -> mean of the lenient metric ("right value, any form"), where the scorer has it.
        statuses: scoring id -> outcome -> number of answers.
        checkpoints: training run id -> final checkpoint.
    """

    suites: list[Row[Any]]
    cells: list[Row[Any]]
    trainings: dict[str, Row[Any]] = field(default_factory=dict)
    evaluations: dict[str, Row[Any]] = field(default_factory=dict)
    scorings: dict[str, Row[Any]] = field(default_factory=dict)
    environments: dict[int, dict[str, Any]] = field(default_factory=dict)
    totals: dict[int, Totals] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    value_rates: dict[int, float] = field(default_factory=dict)
    statuses: dict[int, dict[str, int]] = field(default_factory=dict)
    checkpoints: dict[int, Row[Any]] = field(default_factory=dict)


def snapshot(store: HasSession, suite: str | None = None) -> Snapshot:
    """Read everything but the samples themselves.

    Args:
        store: an open store.
        suite: only this suite; None = all.

    Returns:
        The rows of the newest run of each suite.

    Raises:
        ValueError: the named suite was never run in this database.
    """
    with store.session() as session:
        suites = _newest_suites(session, suite)
        ids = [row.id for row in suites]
        cells = list(session.execute(select(Cell.__table__).where(Cell.suite_run_id.in_(ids)).order_by(Cell.id)))
        trainings = _by_fingerprint(session, TrainingRun, {c.training_fingerprint for c in cells} - {None})
        evaluations = _by_fingerprint(session, Evaluation, {c.evaluation_fingerprint for c in cells})
        scorings = _by_fingerprint(session, Scoring, {c.scoring_fingerprint for c in cells})
        totals = _totals(session, sorted(row.id for row in evaluations.values()))
        rates, value_rates, statuses = _rates(session, sorted(row.id for row in scorings.values()))
        run_ids = sorted(row.id for row in trainings.values())
        checkpoints = {
            row.training_run_id: row
            for part in chunks(run_ids)
            for row in session.execute(
                select(Checkpoint.__table__)
                .where(Checkpoint.training_run_id.in_(part), Checkpoint.is_final)
                .order_by(Checkpoint.step)
            )
        }
        environments = {row.id: row.data for row in session.execute(select(Environment.__table__))}
    return Snapshot(
        suites=suites,
        cells=cells,
        trainings=trainings,
        evaluations=evaluations,
        scorings=scorings,
        environments=environments,
        totals=totals,
        rates=rates,
        value_rates=value_rates,
        statuses=statuses,
        checkpoints=checkpoints,
    )


def outcomes(store: HasSession, scoring_ids: Iterable[int]) -> dict[int, dict[str, float]]:
    """Headline score of every question; repeats of a question are averaged.

    Args:
        store: an open store.
        scoring_ids: primary keys of scorings.

    Returns:
        scoring id -> question id -> score in [0, 1].
    """
    found: dict[int, dict[str, list[float]]] = {}
    with store.session() as session:
        for part in chunks(sorted(set(scoring_ids))):
            query = select(Score.scoring_id, Sample.sample_id, Score.value).join(Sample, Sample.id == Score.sample_pk)
            for key, sample_id, value in session.execute(query.where(Score.scoring_id.in_(part))):
                found.setdefault(key, {}).setdefault(sample_id, []).append(value)
    return {key: {i: sum(v) / len(v) for i, v in answers.items()} for key, answers in found.items()}


def training_points(store: HasSession, run_id: int) -> list[tuple[int, dict[str, Any]]]:
    """Metrics of a training run by optimiser step.

    Args:
        store: an open store.
        run_id: primary key of a training run.

    Returns:
        [(step, metrics)] in order of steps.
    """
    query = select(TrainingPoint.step, TrainingPoint.metrics).where(TrainingPoint.training_run_id == run_id)
    with store.session() as session:
        return [(step, metrics) for step, metrics in session.execute(query.order_by(TrainingPoint.step))]


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Pieces of a list, small enough for one query."""
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]


def _newest_suites(session: Session, suite: str | None) -> list[Row[Any]]:
    newest = select(func.max(SuiteRun.id)).group_by(SuiteRun.suite)
    rows = list(session.execute(select(SuiteRun.__table__).where(SuiteRun.id.in_(newest)).order_by(SuiteRun.suite)))
    if suite is None:
        return rows
    chosen = [row for row in rows if row.suite == suite]
    if not chosen:
        known = ", ".join(row.suite for row in rows) or "none"
        raise ValueError(
            f"suite {suite!r} was never run in this database (it holds: {known}); run `dare-bench run` first"
        )
    return chosen


def _by_fingerprint(session: Session, table: Any, fingerprints: set[str]) -> dict[str, Row[Any]]:
    return {
        row.fingerprint: row
        for part in chunks(sorted(fingerprints))
        for row in session.execute(select(table.__table__).where(table.fingerprint.in_(part)))
    }


def _totals(session: Session, evaluation_ids: Sequence[int]) -> dict[int, Totals]:
    sums = select(
        Sample.evaluation_id,
        func.count(),
        func.max(Sample.repeat),
        func.sum(Sample.nfe),
        func.sum(Sample.tokens_text),
        func.sum(Sample.flops),
    ).group_by(Sample.evaluation_id)
    return {
        key: Totals(int(n), int(n) // (int(repeat) + 1), int(nfe), int(tokens), float(flops))
        for part in chunks(evaluation_ids)
        for key, n, repeat, nfe, tokens, flops in session.execute(sums.where(Sample.evaluation_id.in_(part)))
    }


def _rates(
    session: Session, scoring_ids: Sequence[int]
) -> tuple[dict[int, float], dict[int, float], dict[int, dict[str, int]]]:
    rates: dict[int, float] = {}
    value_rates: dict[int, float] = {}
    statuses: dict[int, dict[str, int]] = {}
    means = select(Score.scoring_id, func.avg(Score.value), func.avg(Score.metrics["value"].as_float()))
    counts = select(Score.scoring_id, Score.status, func.count())
    for part in chunks(scoring_ids):
        for key, rate, value_rate in session.execute(
            means.where(Score.scoring_id.in_(part)).group_by(Score.scoring_id)
        ):
            rates[key] = float(rate)
            if value_rate is not None:
                value_rates[key] = float(value_rate)
        for key, status, count in session.execute(
            counts.where(Score.scoring_id.in_(part)).group_by(Score.scoring_id, Score.status)
        ):
            statuses.setdefault(key, {})[status] = int(count)
    return rates, value_rates, statuses
