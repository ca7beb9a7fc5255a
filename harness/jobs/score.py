"""Score stored answers with one scorer version. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dare_bench.harness.errors import JobError
from dare_bench.results.schema import Evaluation, Sample
from dare_bench.suites.benchmarks import registry as benchmark_registry
from dare_bench.suites.scoring import registry as scorer_registry
from dare_bench.suites.scoring.registry import Verdict
from sqlalchemy import select

if TYPE_CHECKING:
    from dare_bench.harness.jobs.session import Session


def run(job: dict[str, Any], session: Session) -> None:
    """Score every sample of an evaluation; all scores are one transaction."""
    spec, store = job["spec"], session.store
    scorer = scorer_registry.get(spec["scorer"])
    task = spec["task"]
    rows = benchmark_registry.get(task["name"]).rows(task["split"], data_dir=session.data, limit=task["limit"])
    by_id = {row.id: row for row in rows}
    with store.read() as query:
        evaluation_id = query.scalar(select(Evaluation.id).where(Evaluation.fingerprint == spec["evaluation"]))
        if evaluation_id is None:
            raise JobError(f"evaluation {spec['evaluation'][:16]} is not in the database")
        wanted = select(Sample.sample_id, Sample.repeat, Sample.text, Sample.finish_reason, Sample.gold)
        samples = query.execute(wanted.where(Sample.evaluation_id == evaluation_id).order_by(Sample.id)).all()
    for name, _, _, _, gold in samples:
        row = by_id.get(name)
        if row is None or row.gold != gold:
            raise JobError(f"sample {name} of {task['name']} is not the row it was generated from; the data changed")
    verdicts = scorer.score_all([sample.text for sample in samples], [by_id[sample.sample_id] for sample in samples])
    scores = [
        {"sample_id": sample.sample_id, "repeat": sample.repeat, **columns(found, sample.finish_reason)}
        for sample, found in zip(samples, verdicts, strict=True)
    ]
    store.write_scoring(job["fingerprint"], evaluation_id, scorer.name, scorer.version, scores)


def columns(found: Verdict, finish_reason: str) -> dict[str, Any]:
    """Columns of one score.

    Args:
        found: what the scorer said.
        finish_reason: ``length`` turns "no answer" into "truncated"; both count as wrong.
    """
    status = "truncated" if found.status == "no_answer" and finish_reason == "length" else found.status
    return {
        "value": found.value,
        "metrics": dict(found.metrics),
        "extracted": found.extracted,
        "status": status,
        "detail": found.detail,
    }
