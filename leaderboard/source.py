"""Two reads beside `results.queries`: outcomes of exactly one scoring, and the light columns of answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dare_bench.results.schema import Evaluation, Sample, Score, Scoring, Trajectory
from dare_bench.results.transactions import Transactions
from sqlalchemy import select

#: SQLite allows 32,766 bound variables; fingerprints are asked for in pieces.
_CHUNK = 5_000


@dataclass(frozen=True)
class Answer:
    """One answer without its texts.

    Attributes:
        sample_id: stable id. repeat: 0-based. nfe: forwards. tokens: committed tokens before the first stop token.
        value: headline score in [0, 1], None when not scored. status: outcome of the scorer, None when not scored.
        has_trajectory: whether the order of its tokens is stored.
    """

    sample_id: str
    repeat: int
    nfe: int
    tokens: int
    value: float | None
    status: str | None
    has_trajectory: bool


def outcomes(store: Transactions, scoring_fingerprints: Collection[str]) -> dict[str, dict[str, float]]:
    """Headline score of every question under given scorings; repeats of a question are averaged.

    A cell names its scoring: a newer scoring of the same answers belongs to another cell.

    Args:
        store: open store.
        scoring_fingerprints: sha256 hex each.

    Returns:
        {scoring fingerprint: {sample id: score in [0, 1]}}, without entries for unknown scorings.
    """
    found: dict[str, dict[str, list[float]]] = {}
    wanted = sorted(set(scoring_fingerprints))
    with store.read() as session:
        for start in range(0, len(wanted), _CHUNK):
            rows = session.execute(
                select(Scoring.fingerprint, Sample.sample_id, Score.value)
                .join(Score, Score.scoring_id == Scoring.id)
                .join(Sample, Sample.id == Score.sample_pk)
                .where(Scoring.fingerprint.in_(wanted[start : start + _CHUNK]))
            )
            for fingerprint, sample_id, value in rows:
                found.setdefault(fingerprint, {}).setdefault(sample_id, []).append(value)
    return {name: {i: sum(v) / len(v) for i, v in answers.items()} for name, answers in found.items()}


def answers(store: Transactions, evaluation_fingerprint: str, scoring_fingerprint: str) -> list[Answer]:
    """All answers of an evaluation without their texts.

    Args:
        store: open store.
        evaluation_fingerprint: sha256 hex.
        scoring_fingerprint: sha256 hex of the scoring whose verdicts are wanted.

    Returns:
        Answers by sample id, then repeat.
    """
    verdicts = (
        select(Score.sample_pk, Score.value, Score.status)
        .join(Scoring, Scoring.id == Score.scoring_id)
        .where(Scoring.fingerprint == scoring_fingerprint)
        .subquery()
    )
    query = (
        select(
            Sample.sample_id,
            Sample.repeat,
            Sample.nfe,
            Sample.tokens_text,
            verdicts.c.value,
            verdicts.c.status,
            Trajectory.sample_pk.is_not(None),
        )
        .join(Evaluation, Evaluation.id == Sample.evaluation_id)
        .outerjoin(verdicts, verdicts.c.sample_pk == Sample.id)
        .outerjoin(Trajectory, Trajectory.sample_pk == Sample.id)
        .where(Evaluation.fingerprint == evaluation_fingerprint)
        .order_by(Sample.sample_id, Sample.repeat)
    )
    with store.read() as session:
        return [Answer(*row) for row in session.execute(query)]
