"""Writing evaluations, their samples and scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dare_bench.results.opening import StoreError
from dare_bench.results.schema import SAMPLE_STATUSES, Evaluation, Sample, Score, Scoring, Trajectory
from dare_bench.results.transactions import Transactions, count_rows, insert_into, no_row, now
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session


class EvaluationWrites(Transactions):
    """Methods of `Store` for evaluations and scorings; each is one transaction."""

    def begin_evaluation(self, fingerprint: str, **columns: Any) -> int:
        """Insert an evaluation as running, or set an unfinished one back to running; its samples stay.

        Args:
            fingerprint: sha256 hex of everything that determines the answers.
            columns: further columns of `Evaluation` (model, family, benchmark, protocol, decoder, hard_key,
                hard_fields, numerics, data, n_expected = rows times repeats, ...).

        Returns:
            Id of the row.

        Raises:
            StoreError: the evaluation is done.
        """
        return self._begin_job(Evaluation, fingerprint, columns, redo=False)

    def add_samples(
        self,
        evaluation_id: int,
        batch: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]],
        decode_wall_s: float,
    ) -> int:
        """Store a finished batch; a sample that is there already (same sample_id and repeat) is left as it is.

        Args:
            evaluation_id: id from `begin_evaluation`.
            batch: (columns of `Sample`, columns of `Trajectory` or None); repeat and edits default to 0.
            decode_wall_s: seconds of decoding for this batch; added to the evaluation in proportion to the samples
                that are new, so that a batch given twice counts once.

        Returns:
            Number of new samples.

        Raises:
            StoreError: no such evaluation, or it is not running.
        """
        if not batch:
            return 0
        rows = [{"repeat": 0, "edits": 0, **sample, "evaluation_id": evaluation_id} for sample, _ in batch]
        paths = {(row["sample_id"], row["repeat"]): path for row, (_, path) in zip(rows, batch, strict=True)}
        table = Sample.__table__
        with self.session() as session:
            status = _lock(session, evaluation_id).status
            if status != "running":
                raise StoreError(f"evaluation {evaluation_id} is {status}, not running: begin it again to add samples")
            insert = insert_into(session, Sample).on_conflict_do_nothing(
                index_elements=["evaluation_id", "sample_id", "repeat"]
            )
            added = session.execute(insert.returning(table.c.id, table.c.sample_id, table.c.repeat), rows).all()
            steps = [{**path, "sample_pk": pk} for pk, *key in added if (path := paths[tuple(key)]) is not None]
            if steps:
                session.execute(insert_into(session, Trajectory), steps)
            if added:
                spent = decode_wall_s * len(added) / len(rows)
                session.execute(
                    update(Evaluation)
                    .where(Evaluation.id == evaluation_id)
                    .values(decode_wall_s=func.coalesce(Evaluation.decode_wall_s, 0.0) + spent)
                )
        return len(added)

    def finished_sample_ids(self, evaluation_id: int, repeat: int = 0) -> set[str]:
        """Samples that are stored already, to be skipped when an evaluation goes on.

        Args:
            evaluation_id: id from `begin_evaluation`.
            repeat: which repeat, 0-based.

        Returns:
            Sample ids.
        """
        with self.read() as session:
            asked = select(Sample.sample_id).where(Sample.evaluation_id == evaluation_id, Sample.repeat == repeat)
            return set(session.scalars(asked))

    def finish_evaluation(
        self, evaluation_id: int, status: str, *, wall_s: float | None = None, error: str | None = None
    ) -> None:
        """Set the final status of an evaluation.

        Args:
            evaluation_id: id from `begin_evaluation`.
            status: "done" or "failed".
            wall_s: seconds of the whole job.
            error: message of a failure.

        Raises:
            StoreError: no such evaluation, or "done" while the number of samples is not `n_expected`.
        """
        with self.session() as session:
            evaluation = _lock(session, evaluation_id)
            if status == "done":
                stored = count_rows(session, Sample.evaluation_id, evaluation_id)
                if stored != evaluation.n_expected:
                    raise StoreError(
                        f"evaluation {evaluation_id} ({evaluation.benchmark}) has {stored} samples, "
                        f"{evaluation.n_expected} are expected: it is not done. Add the missing ones or fail it"
                    )
            self._finish_job(session, Evaluation, evaluation_id, status, {"wall_s": wall_s, "error": error})

    def write_scoring(
        self,
        fingerprint: str,
        evaluation_id: int,
        scorer: str,
        scorer_version: int,
        scores: Iterable[Mapping[str, Any]],
    ) -> None:
        """Store all verdicts of one scorer version on one evaluation; replaces a failed scoring, keeps a done one.

        Args:
            fingerprint: sha256 hex of the evaluation and the scorer version.
            evaluation_id: a done evaluation.
            scorer: name.
            scorer_version: integer version.
            scores: columns of `Score` with `sample_id` (and `repeat`, default 0) or `sample_pk`: value in [0, 1],
                metrics, status, optional extracted and detail. Exactly one for every sample of the evaluation.

        Raises:
            StoreError: the evaluation is not done, a sample lacks its score or has two, a bad status or value.
        """
        with self.session() as session:
            evaluation = _lock(session, evaluation_id)
            if evaluation.status != "done":
                raise StoreError(
                    f"evaluation {evaluation_id} is {evaluation.status}; only a done evaluation is scored, "
                    "or samples that come later would stay without a score"
                )
            if _drop_unless_done(session, fingerprint):
                return
            stored = session.execute(
                select(Sample.id, Sample.sample_id, Sample.repeat).where(Sample.evaluation_id == evaluation_id)
            )
            rows = _score_rows({(name, repeat): pk for pk, name, repeat in stored}, scores)
            scoring_id = session.execute(
                insert_into(session, Scoring)
                .values(**_scoring(fingerprint, evaluation_id, scorer, scorer_version), status="done")
                .returning(Scoring.__table__.c.id)
            ).scalar_one()
            if rows:
                session.execute(insert_into(session, Score), [{**row, "scoring_id": scoring_id} for row in rows])

    def fail_scoring(self, fingerprint: str, evaluation_id: int, scorer: str, scorer_version: int, error: str) -> None:
        """Record that a scorer broke; a done scoring stays as it is.

        Args:
            fingerprint: sha256 hex of the evaluation and the scorer version.
            evaluation_id: the evaluation.
            scorer: name.
            scorer_version: integer version.
            error: message.

        Raises:
            StoreError: no such evaluation.
        """
        with self.session() as session:
            _lock(session, evaluation_id)
            if _drop_unless_done(session, fingerprint):
                return
            values = _scoring(fingerprint, evaluation_id, scorer, scorer_version)
            session.execute(insert_into(session, Scoring).values(**values, status="failed", error=error))


def _lock(session: Session, evaluation_id: int) -> Evaluation:
    """The evaluation, locked against other writers (SQLite's write lock is held already)."""
    found = session.get(Evaluation, evaluation_id, with_for_update=True)
    if found is None:
        raise no_row(Evaluation, evaluation_id)
    return found


def _drop_unless_done(session: Session, fingerprint: str) -> bool:
    """Whether the scoring is done; an unfinished one is deleted with its scores."""
    if session.scalar(select(Scoring.status).where(Scoring.fingerprint == fingerprint)) == "done":
        return True
    session.execute(delete(Scoring).where(Scoring.fingerprint == fingerprint))
    return False


def _scoring(fingerprint: str, evaluation_id: int, scorer: str, scorer_version: int) -> dict[str, Any]:
    return {
        "fingerprint": fingerprint,
        "evaluation_id": evaluation_id,
        "scorer": scorer,
        "scorer_version": scorer_version,
        "finished_at": now(),
    }


def _score_rows(pks: dict[tuple[str, int], int], scores: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for score in scores:
        name = score.get("sample_id", score.get("sample_pk"))
        pk = score["sample_pk"] if "sample_pk" in score else pks.get((score["sample_id"], score.get("repeat", 0)))
        if score["status"] not in SAMPLE_STATUSES:
            raise StoreError(
                f"score of sample {name!r} has status {score['status']!r}; allowed: {', '.join(SAMPLE_STATUSES)}"
            )
        if not 0.0 <= score["value"] <= 1.0:
            raise StoreError(f"score of sample {name!r} is {score['value']!r}; allowed: 0 to 1")
        if pk is None:
            raise StoreError(f"score of sample {name!r}: the evaluation has no such sample")
        kept = {key: score.get(key) for key in ("value", "metrics", "extracted", "status", "detail")}
        rows.append({**kept, "sample_pk": pk})
    counts = Counter(row["sample_pk"] for row in rows)
    wrong = [key for key, pk in pks.items() if counts.pop(pk, 0) != 1]
    if wrong or counts:
        raise StoreError(
            f"{len(rows)} scores for {len(pks)} samples; every sample needs exactly one. "
            f"Samples with none or several: {wrong[:5]}; scores of other evaluations: {sorted(counts)[:5]}"
        )
    return rows
