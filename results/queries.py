"""Read models for the site and the command line. Each function takes one snapshot and a fixed number of queries."""

from __future__ import annotations

from dare_bench.results.aggregates import (
    environments,
    evaluation_views,
    row_dict,
    scoring_views,
    training_views,
)
from dare_bench.results.opening import StoreError
from dare_bench.results.sample_queries import (
    SampleView,
    TrainingPointView,
    outcomes,
    samples,
    training_curves,
    training_points,
    unknown_evaluation,
)
from dare_bench.results.schema import Cell, Evaluation, Scoring, SuiteRun, TrainingRun
from dare_bench.results.transactions import Transactions
from dare_bench.results.views import CellDetail, CellView, SuiteView
from sqlalchemy import func, select
from sqlalchemy.orm import Session

__all__ = [
    "SampleView",
    "TrainingPointView",
    "cell_detail",
    "leaderboard_cells",
    "outcomes",
    "samples",
    "suites",
    "training_curves",
    "training_points",
]


def suites(store: Transactions, suite: str | None = None, *, latest: bool = True) -> list[SuiteView]:
    """Runs of suites.

    Args:
        store: open store.
        suite: name, all when None.
        latest: only the newest run of each suite.

    Returns:
        Runs by suite name, then age.
    """
    with store.read() as session:
        return _suites(session, suite, latest)


def _suites(session: Session, suite: str | None, latest: bool) -> list[SuiteView]:
    query = select(SuiteRun).order_by(SuiteRun.suite, SuiteRun.id)
    if suite is not None:
        query = query.where(SuiteRun.suite == suite)
    if latest:
        query = query.where(SuiteRun.id.in_(select(func.max(SuiteRun.id)).group_by(SuiteRun.suite)))
    runs = session.scalars(query).all()
    sizes = dict(session.execute(select(Cell.suite_run_id, func.count()).group_by(Cell.suite_run_id)).all())
    data = environments(session, {run.environment_id for run in runs})
    names = ("id", "suite", "manifest_hash", "resolved", "status", "command_line", "started_at", "finished_at")
    return [
        SuiteView(**row_dict(run, names), environment=data.get(run.environment_id or 0), n_cells=sizes.get(run.id, 0))
        for run in runs
    ]


def leaderboard_cells(
    store: Transactions, suite: str | None = None, *, suite_run_id: int | None = None
) -> list[CellView]:
    """Cells of the newest run of each suite with training, evaluation, scoring and recomputed aggregates.

    Args:
        store: open store.
        suite: name of one suite, all when None.
        suite_run_id: one run instead of the newest.

    Returns:
        Cells by suite, in the order of the grid.

    Raises:
        StoreError: a suite or run was named that is not in the database.
    """
    with store.read() as session:
        if suite_run_id is None:
            runs = {view.id: view.suite for view in _suites(session, suite, latest=True)}
        else:
            found = select(SuiteRun.id, SuiteRun.suite).where(SuiteRun.id == suite_run_id)
            runs = dict(session.execute(found).all())
        if not runs and (suite is not None or suite_run_id is not None):
            known = ", ".join(session.scalars(select(SuiteRun.suite).distinct().order_by(SuiteRun.suite))) or "none"
            asked = f"run {suite_run_id}" if suite_run_id is not None else f"suite {suite!r}"
            raise StoreError(f"{asked} is not in this database; suites in it: {known}")
        cells = session.scalars(select(Cell).where(Cell.suite_run_id.in_(runs)).order_by(Cell.id)).all()
        chosen = Cell.suite_run_id.in_(runs)
        trainings = training_views(
            session, TrainingRun.fingerprint.in_(select(Cell.training_fingerprint).where(chosen))
        )
        evaluations = evaluation_views(
            session, Evaluation.fingerprint.in_(select(Cell.evaluation_fingerprint).where(chosen))
        )
        scorings = scoring_views(session, Scoring.fingerprint.in_(select(Cell.scoring_fingerprint).where(chosen)))
    by_training = {view.fingerprint: view for view in trainings}
    by_evaluation = {view.fingerprint: view for view, _ in evaluations}
    by_scoring = {view.fingerprint: view for view, _ in scorings}
    views = [
        CellView(
            **{name: value for name, value in row_dict(cell).items() if name != "id"},
            suite=runs[cell.suite_run_id],
            training=by_training.get(cell.training_fingerprint or ""),
            evaluation=by_evaluation.get(cell.evaluation_fingerprint),
            scoring=by_scoring.get(cell.scoring_fingerprint),
        )
        for cell in cells
    ]
    return sorted(views, key=lambda view: view.suite)  # stable: the order of the grid stays


def cell_detail(store: Transactions, evaluation_fingerprint: str) -> CellDetail:
    """One evaluation from all sides.

    Args:
        store: open store.
        evaluation_fingerprint: sha256 hex.

    Returns:
        Evaluation, training run, all scorings, the cells it answers.

    Raises:
        StoreError: no such evaluation.
    """
    with store.read() as session:
        found = evaluation_views(session, Evaluation.fingerprint == evaluation_fingerprint)
        if not found:
            raise unknown_evaluation(evaluation_fingerprint)
        view, training_run_id = found[0]
        trainings = training_views(session, TrainingRun.id == training_run_id)
        scorings = [scoring for scoring, _ in scoring_views(session, Scoring.evaluation_id == view.id)]
        named = (
            select(SuiteRun.suite, Cell.name)
            .join(Cell.suite_run)
            .where(Cell.evaluation_fingerprint == evaluation_fingerprint)
            .distinct()
            .order_by(SuiteRun.suite, Cell.name)
        )
        cells = list(session.execute(named))
    return CellDetail(view, trainings[0] if trainings else None, scorings, cells)
