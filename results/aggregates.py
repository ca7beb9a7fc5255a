"""Sums and means recomputed from rows, for many evaluations in one query each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from dare_bench.results.schema import Checkpoint, Environment, Evaluation, Sample, Score, Scoring, TrainingRun
from dare_bench.results.views import CostTotals, EvaluationView, ScoringView, TrainingView
from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

_REAL = ("flops", "wall_s")

#: Cost columns of `Sample`, all of them additive.
SUMMED = (
    "nfe",
    "row_forwards",
    "positions_fed",
    "kv_read",
    "tokens_committed",
    "tokens_text",
    "edits",
    "flops",
    "wall_s",
)


def row_dict(row: Any, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Columns of an ORM row.

    Args:
        row: mapped object.
        names: which columns, all when None.

    Returns:
        {column: value}; a time without zone (SQLite keeps none) is marked as the UTC it is.
    """
    found = {name: getattr(row, name) for name in names or row.__table__.columns.keys()}
    return {
        name: value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
        for name, value in found.items()
    }


def environments(session: Session, ids: Any) -> dict[int, dict[str, Any]]:
    """Environments by id, in one query.

    Args:
        session: open session.
        ids: collection of ids or a subquery.

    Returns:
        {id: data}.
    """
    rows = session.execute(select(Environment.id, Environment.data).where(Environment.id.in_(ids)))
    return {row.id: row.data for row in rows}


def training_views(session: Session, condition: Any) -> list[TrainingView]:
    """Training runs with checkpoints and environments, in three queries.

    Args:
        session: open session.
        condition: SQL condition on `TrainingRun`.

    Returns:
        Views by id.
    """
    runs = session.scalars(select(TrainingRun).where(condition).order_by(TrainingRun.id)).all()
    final = session.scalars(select(Checkpoint).join(TrainingRun).where(condition, Checkpoint.is_final))
    checkpoints = {row.training_run_id: row_dict(row, ("step", "path", "sha256")) for row in final}
    data = environments(session, {run.environment_id for run in runs})
    return [
        TrainingView(
            **_without(row_dict(run), "environment_id"),
            environment=data.get(run.environment_id),
            checkpoint=checkpoints.get(run.id),
        )
        for run in runs
    ]


def evaluation_views(session: Session, condition: Any) -> list[tuple[EvaluationView, int | None]]:
    """Evaluations with the sums of their samples, in three queries.

    Args:
        session: open session.
        condition: SQL condition on `Evaluation`.

    Returns:
        (view, id of the training run), by id.
    """
    rows = session.scalars(select(Evaluation).where(condition).order_by(Evaluation.id)).all()
    data = environments(session, {row.environment_id for row in rows})
    costs = cost_totals(session, condition)
    return [
        (
            EvaluationView(
                **_without(row_dict(row), "environment_id", "training_run_id"),
                environment=data.get(row.environment_id),
                costs=costs.get(row.id, CostTotals()),
            ),
            row.training_run_id,
        )
        for row in rows
    ]


def cost_totals(session: Session, condition: Any) -> dict[int, CostTotals]:
    """Sums over the samples of evaluations, in one query.

    Args:
        session: open session.
        condition: SQL condition on `Evaluation`.

    Returns:
        {evaluation id: sums}; an evaluation without samples is absent.
    """
    query = (
        select(
            Sample.evaluation_id,
            func.count().label("n"),
            func.sum(case((Sample.finish_reason == "length", 1), else_=0)).label("n_length"),
            *(func.sum(getattr(Sample, name)).label(name) for name in SUMMED),
        )
        .where(Sample.evaluation_id.in_(select(Evaluation.id).where(condition)))
        .group_by(Sample.evaluation_id)
    )
    return {
        row["evaluation_id"]: CostTotals(
            # PostgreSQL sums integers to numeric, which arrives as Decimal.
            **{name: float(row[name]) if name in _REAL else int(row[name]) for name in ("n", "n_length", *SUMMED)}
        )
        for row in session.execute(query).mappings()
    }


def scoring_views(session: Session, condition: Any) -> list[tuple[ScoringView, int]]:
    """Scorings with the means of their scores, in two queries.

    The verdicts of a scoring take few distinct values, so the database groups equal ones and hands over a
    handful of rows, whatever the number of samples.

    Args:
        session: open session.
        condition: SQL condition on `Scoring`.

    Returns:
        (view, evaluation id), by id.
    """
    rows = session.scalars(select(Scoring).where(condition).order_by(Scoring.id)).all()
    groups: dict[int, list[Any]] = defaultdict(list)
    query = (
        select(Score.scoring_id, Score.status, Score.value, Score.metrics, func.count().label("n"))
        .where(Score.scoring_id.in_(select(Scoring.id).where(condition)))
        .group_by(Score.scoring_id, Score.status, Score.value, Score.metrics)
    )
    for group in session.execute(query):
        groups[group.scoring_id].append(group)
    return [
        (
            ScoringView(
                **row_dict(row, ("fingerprint", "scorer", "scorer_version", "status", "error")),
                **_means(groups[row.id]),
            ),
            row.evaluation_id,
        )
        for row in rows
    ]


def _means(groups: Collection[Any]) -> dict[str, Any]:
    n = sum(group.n for group in groups)
    if not n:
        return {}
    statuses: dict[str, int] = defaultdict(int)
    parts: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        statuses[group.status] += group.n
        for name, value in group.metrics.items():
            parts[name].append(value * group.n)
    # fsum: the mean must not depend on the order in which the database returns the groups.
    return {
        "n": n,
        "statuses": dict(sorted(statuses.items())),
        "score": math.fsum(group.value * group.n for group in groups) / n,
        "metrics": {name: math.fsum(values) / n for name, values in sorted(parts.items())},
    }


def _without(columns: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if name not in names}
