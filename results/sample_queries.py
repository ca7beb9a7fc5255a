"""Read models of single answers and of training curves; reached through `dare_bench.results.queries`."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from dare_bench.results.aggregates import SUMMED, row_dict
from dare_bench.results.opening import StoreError
from dare_bench.results.schema import Evaluation, Sample, Score, Scoring, TrainingPoint, TrainingRun
from dare_bench.results.transactions import Transactions
from sqlalchemy import Text, cast, select
from sqlalchemy.orm import Session, selectinload

_SCORE = ("value", "metrics", "extracted", "status", "detail")
_TRAJECTORY = ("token_ids", "pieces", "step_map", "confidence", "convention", "block_starts", "kinds")


@dataclass(frozen=True)
class SampleView:
    """One answer with its verdict and its trajectory.

    Attributes:
        sample_id: stable id.
        repeat: 0-based.
        prompt: as sent, after the chat template.
        question: of the benchmark.
        gold: right answer.
        text: the model's answer.
        finish_reason: stop or length.
        costs: {nfe, row_forwards, positions_fed, kv_read, tokens_committed, tokens_text, edits, flops, wall_s}.
        score: {value, metrics, extracted, status, detail}, None when not scored.
        trajectory: {token_ids, pieces, step_map, confidence, convention, block_starts, kinds}, None when not kept.
    """

    sample_id: str
    repeat: int
    prompt: str
    question: str
    gold: str
    text: str
    finish_reason: str
    costs: dict[str, int | float]
    score: dict[str, Any] | None
    trajectory: dict[str, Any] | None


@dataclass(frozen=True)
class TrainingPointView:
    """Metrics of one optimiser step.

    Attributes:
        step: optimiser step.
        metrics: determined values; null where a number was not finite.
        timing: wall times in seconds.
    """

    step: int
    metrics: dict[str, Any]
    timing: dict[str, Any]


def latest_scorings(session: Session, evaluation_ids: Collection[int]) -> dict[int, int]:
    """Newest done scoring of evaluations: the highest scorer version, of these the last one written.

    Args:
        session: open session.
        evaluation_ids: primary keys.

    Returns:
        {evaluation id: scoring id}.
    """
    rows = session.execute(
        select(Scoring.evaluation_id, Scoring.id)
        .where(Scoring.status == "done", Scoring.evaluation_id.in_(evaluation_ids))
        .order_by(Scoring.scorer_version, Scoring.id)
    )
    return dict(rows.all())


def samples(
    store: Transactions,
    evaluation_fingerprint: str,
    *,
    ids: Collection[str] | None = None,
    limit: int | None = None,
    trajectories: bool = True,
    scoring_fingerprint: str | None = None,
) -> list[SampleView]:
    """Answers of an evaluation with verdicts and trajectories.

    Args:
        store: open store.
        evaluation_fingerprint: sha256 hex.
        ids: only these sample ids.
        limit: at most so many.
        trajectories: read them too (they are the bulk of the database).
        scoring_fingerprint: which scoring; the newest done one when None.

    Returns:
        Samples by id, then repeat.

    Raises:
        StoreError: no such evaluation.
    """
    with store.read() as session:
        evaluation_id = session.scalar(select(Evaluation.id).where(Evaluation.fingerprint == evaluation_fingerprint))
        if evaluation_id is None:
            raise unknown_evaluation(evaluation_fingerprint)
        if scoring_fingerprint is None:
            scoring_id = latest_scorings(session, [evaluation_id]).get(evaluation_id)
        else:
            scoring_id = session.scalar(select(Scoring.id).where(Scoring.fingerprint == scoring_fingerprint))
        query = (
            select(Sample, Score)
            .outerjoin(Score, (Score.sample_pk == Sample.id) & (Score.scoring_id == scoring_id))
            .where(Sample.evaluation_id == evaluation_id)
            .order_by(Sample.sample_id, Sample.repeat)
            .limit(limit)
        )
        if ids is not None:
            query = query.where(Sample.sample_id.in_(ids))
        if trajectories:
            query = query.options(selectinload(Sample.trajectory))
        return [
            SampleView(
                **row_dict(sample, ("sample_id", "repeat", "prompt", "question", "gold", "text", "finish_reason")),
                costs=row_dict(sample, SUMMED),
                score=None if score is None else row_dict(score, _SCORE),
                trajectory=row_dict(sample.trajectory, _TRAJECTORY) if trajectories and sample.trajectory else None,
            )
            for sample, score in session.execute(query)
        ]


def outcomes(store: Transactions, evaluation_fingerprints: Collection[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Per-sample results for paired tests, of the newest done scoring of each evaluation.

    Args:
        store: open store.
        evaluation_fingerprints: sha256 hex each.

    Returns:
        {evaluation fingerprint: {sample id: {"score": headline value, metric: value}}}, each a mean over repeats;
        an evaluation that is unknown or not scored has an empty inner dictionary.
    """
    sums: dict[str, dict[str, list[dict[str, float]]]] = {name: defaultdict(list) for name in evaluation_fingerprints}
    with store.read() as session:
        asked = select(Evaluation.id, Evaluation.fingerprint).where(Evaluation.fingerprint.in_(list(sums)))
        names = dict(session.execute(asked).all())
        chosen = latest_scorings(session, list(names))
        rows = session.execute(
            select(Sample.evaluation_id, Sample.sample_id, Score.value, cast(Score.metrics, Text))
            .join(Score, Score.sample_pk == Sample.id)
            .where(Score.scoring_id.in_(chosen.values()))
            .order_by(Sample.evaluation_id, Sample.sample_id, Sample.repeat)
        )
        for evaluation_id, sample_id, value, metrics in rows:
            sums[names[evaluation_id]][sample_id].append({**_parsed(metrics), "score": value})
    return {
        name: {sample_id: _mean_over_repeats(found) for sample_id, found in per_sample.items()}
        for name, per_sample in sums.items()
    }


@functools.lru_cache(maxsize=4096)
def _parsed(metrics: str) -> dict[str, float]:
    # Nearly all rows share a few texts ({"strict":0,"value":1}); callers copy, nobody changes the cached one.
    return json.loads(metrics)


def _mean_over_repeats(found: list[dict[str, float]]) -> dict[str, float]:
    if len(found) == 1:
        return found[0]
    names = sorted(set().union(*found))
    return {name: sum(one.get(name, 0.0) for one in found) / len(found) for name in names}


def training_points(store: Transactions, training_fingerprint: str) -> list[TrainingPointView]:
    """Curve of one training run.

    Args:
        store: open store.
        training_fingerprint: sha256 hex.

    Returns:
        Points by step, empty for an unknown run.
    """
    return training_curves(store, [training_fingerprint])[training_fingerprint]


def training_curves(store: Transactions, fingerprints: Collection[str]) -> dict[str, list[TrainingPointView]]:
    """Curves of training runs, in one query.

    Args:
        store: open store.
        fingerprints: sha256 hex each.

    Returns:
        {fingerprint: points by step}, an empty list for an unknown run.
    """
    curves: dict[str, list[TrainingPointView]] = {name: [] for name in fingerprints}
    with store.read() as session:
        rows = session.execute(
            select(TrainingRun.fingerprint, TrainingPoint.step, TrainingPoint.metrics, TrainingPoint.timing)
            .join(TrainingPoint.training_run)
            .where(TrainingRun.fingerprint.in_(list(curves)))
            .order_by(TrainingPoint.training_run_id, TrainingPoint.step)
        )
        for name, step, metrics, timing in rows:
            curves[name].append(TrainingPointView(step, metrics, timing))
    return curves


def unknown_evaluation(fingerprint: str) -> StoreError:
    """Error for an evaluation that is not in the database.

    Args:
        fingerprint: what was asked for.

    Returns:
        The error to raise.
    """
    return StoreError(f"no evaluation {fingerprint!r} in this database; `dare-bench show` lists the cells")
