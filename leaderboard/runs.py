"""From database rows to runs: which state a cell is in, and which cells share one evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dare_bench.leaderboard.models import Run
from dare_bench.leaderboard.source import Snapshot
from sqlalchemy import Row

_SHOWN_ERROR = 160


@dataclass(frozen=True)
class RunSource:
    """A run with the rows it was made from.

    Attributes:
        run: what pages show. cell: first cell of the grid it answers. evaluation, scoring, training: rows, where they
        exist. hard_key: comparability key, empty before the evaluation began.
    """

    run: Run
    suite: str
    cell: Row[Any]
    evaluation: Row[Any] | None
    scoring: Row[Any] | None
    training: Row[Any] | None

    @property
    def hard_key(self) -> str:
        """Comparability key; empty while unknown."""
        return self.evaluation.hard_key if self.evaluation is not None else ""


def run_sources(snapshot: Snapshot) -> list[RunSource]:
    """Make one run per distinct evaluation and scoring of a (suite, model, label, decoder).

    Args:
        snapshot: rows of the newest suite runs.

    Returns:
        Runs in the order of the grid.
    """
    names = {row.id: row.suite for row in snapshot.suites}
    shared: dict[tuple[Any, ...], list[Row[Any]]] = {}
    for cell in snapshot.cells:
        key = (cell.suite_run_id, cell.model, cell.label, cell.benchmark, cell.decoder)
        shared.setdefault((*key, cell.evaluation_fingerprint, cell.scoring_fingerprint), []).append(cell)
    return [_run_source(snapshot, names[cells[0].suite_run_id], cells) for cells in shared.values()]


def page_key(suite: str, cell: Row[Any]) -> str:
    """Stable file name of a cell page: 12 hexadecimal digits of suite, cell name and scoring fingerprint."""
    text = "\n".join((suite, cell.name, cell.scoring_fingerprint))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _run_source(snapshot: Snapshot, suite: str, cells: list[Row[Any]]) -> RunSource:
    first = cells[0]
    evaluation = snapshot.evaluations.get(first.evaluation_fingerprint)
    scoring = snapshot.scorings.get(first.scoring_fingerprint)
    training = snapshot.trainings.get(first.training_fingerprint) if first.training_fingerprint else None
    state, reason = _state(snapshot, evaluation, scoring, training)
    scored = scoring.id if state == "done" and scoring is not None else None
    run = Run(
        key=page_key(suite, first),
        name=first.name,
        seeds=tuple(sorted(cell.seed for cell in cells)),
        state=state,
        reason=reason,
        n=snapshot.totals[evaluation.id].questions if scored and evaluation is not None else 0,
        accuracy=snapshot.rates[scored] if scored else None,
        value_accuracy=snapshot.value_rates.get(scored) if scored else None,
        is_fixed=evaluation is not None and evaluation.seed is None and first.training_fingerprint is None,
    )
    return RunSource(run, suite, first, evaluation, scoring, training)


def _state(
    snapshot: Snapshot, evaluation: Row[Any] | None, scoring: Row[Any] | None, training: Row[Any] | None
) -> tuple[str, str]:
    """State in one word and the reason in words; an accuracy exists only for `done`."""
    if evaluation is None:
        if training is not None and training.status == "failed":
            return "failed", f"training failed: {first_line(training.error)}"
        if training is not None and training.status == "running":
            return "running", "training has begun and not ended"
        return "not run", "no evaluation is stored yet"
    stored = snapshot.totals[evaluation.id].n if evaluation.id in snapshot.totals else 0
    if evaluation.status == "failed":
        return (
            "failed",
            f"evaluation failed after {stored} of {evaluation.n_expected} answers: {first_line(evaluation.error)}",
        )
    if evaluation.status == "running":
        return "running", f"{stored} of {evaluation.n_expected} answers are stored"
    if stored < evaluation.n_expected:
        return "incomplete", f"only {stored} of {evaluation.n_expected} answers are stored"
    if scoring is None:
        return "incomplete", "the answers are not scored yet; run `dare-bench score`"
    if scoring.status != "done":
        return (
            "failed" if scoring.status == "failed" else "running"
        ), f"scoring {scoring.status}: {first_line(scoring.error)}"
    counts = snapshot.statuses.get(scoring.id, {})
    if counts.get("error"):
        return "incomplete", f"{counts['error']} answers ended in an error of the harness; run the suite again"
    scored = sum(counts.values())
    if scored != stored:
        return "incomplete", f"{scored} of {stored} answers are scored"
    return "done", ""


def first_line(error: str | None) -> str:
    """First line of an error, short enough for a table."""
    line = (error or "no message stored").strip().splitlines()[0] if (error or "").strip() else "no message stored"
    return line if len(line) <= _SHOWN_ERROR else line[:_SHOWN_ERROR] + " …"


def device_tag(evaluation: Row[Any], environments: Mapping[int, Mapping[str, Any]]) -> str:
    """Where an evaluation ran, in a few words: from its numerics fields, else from its environment.

    Args:
        evaluation: row with `numerics` and `environment_id`.
        environments: environment id -> data.

    Returns:
        For example ``cpu · float32 · batch 64``.
    """
    numerics: Mapping[str, Any] = evaluation.numerics or {}
    environment = environments.get(evaluation.environment_id, {}) if evaluation.environment_id else {}
    device = (
        numerics.get("device")
        or numerics.get("gpu")
        or environment.get("gpu")
        or environment.get("cpu")
        or "unknown device"
    )
    if isinstance(device, Mapping):
        device = device.get("model") or device.get("name") or "unknown device"
    if isinstance(device, list):
        device = " + ".join(str(d.get("name", d) if isinstance(d, Mapping) else d) for d in device)
    parts = [str(device)]
    if numerics.get("dtype"):
        parts.append(str(numerics["dtype"]))
    if numerics.get("batch_size"):
        parts.append(f"batch {numerics['batch_size']}")
    return " · ".join(parts)
