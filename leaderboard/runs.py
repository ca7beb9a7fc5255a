"""From cells of the grid to runs: which state a cell is in, and which cells share one evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dare_bench.leaderboard.formats import counted
from dare_bench.leaderboard.models import Run
from dare_bench.results.views import CellView, EvaluationView

_SHOWN_ERROR = 160


@dataclass(frozen=True)
class RunSource:
    """A run with the cell it was made from (the first one, where several seeds share an evaluation)."""

    run: Run
    cell: CellView

    @property
    def hard_key(self) -> str:
        """Comparability key; empty before the evaluation began."""
        return self.cell.evaluation.hard_key if self.cell.evaluation is not None else ""


def run_sources(cells: Sequence[CellView]) -> list[RunSource]:
    """Make one run per distinct evaluation and scoring of a (suite, model, label, benchmark, decoder).

    Args:
        cells: cells of the newest suite runs, in the order of the grid.

    Returns:
        Runs in the same order.
    """
    shared: dict[tuple[str, ...], list[CellView]] = {}
    for cell in cells:
        row = (cell.suite, cell.model, cell.label, cell.benchmark, cell.decoder)
        shared.setdefault((*row, cell.evaluation_fingerprint, cell.scoring_fingerprint), []).append(cell)
    return [_run_source(found) for found in shared.values()]


def page_key(cell: CellView) -> str:
    """Stable file name of a cell page: 10 hexadecimal digits of suite, cell name and scoring fingerprint."""
    text = "\n".join((cell.suite, cell.name, cell.scoring_fingerprint))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def _run_source(cells: list[CellView]) -> RunSource:
    first = cells[0]
    state, reason = state_in_words(first)
    scoring = first.scoring if state == "done" else None
    run = Run(
        key=page_key(first),
        name=first.name,
        seeds=tuple(sorted(cell.seed for cell in cells)),
        state=state,
        reason=reason,
        n=scoring.n if scoring else 0,
        accuracy=scoring.score if scoring else None,
        value_accuracy=scoring.metrics.get("value") if scoring else None,
        is_fixed=first.evaluation is not None and first.evaluation.seed is None and first.training_fingerprint is None,
    )
    return RunSource(run, first)


def state_in_words(cell: CellView) -> tuple[str, str]:
    """State of a cell and why it has no accuracy.

    Args:
        cell: a cell of the grid.

    Returns:
        (``done``, ``running``, ``incomplete``, ``failed`` or ``not run``; reason, empty when done).
    """
    status, training, evaluation, scoring = cell.status, cell.training, cell.evaluation, cell.scoring
    if status == "done":
        return "done", ""
    if status == "failed":
        jobs = (("training", training), ("evaluation", evaluation), ("scoring", scoring))
        name = next(name for name, job in jobs if job is not None and job.status == "failed")
        return "failed", f"{name} failed: {first_line(cell.error)}"
    if status == "running":
        if evaluation is not None and evaluation.status == "running":
            return "running", f"{evaluation.costs.n} of {evaluation.n_expected} answers are stored"
        return "running", "training has begun and not ended"
    if evaluation is None:
        return "not run", "no evaluation is stored yet"
    if scoring is None:
        return "incomplete", "the answers are not scored yet; run `dare-bench score`"
    if scoring.statuses.get("error"):
        return (
            "incomplete",
            f"{counted(scoring.statuses['error'], 'answer')} ended in an error of the harness; run the suite again",
        )
    return "incomplete", f"{scoring.n} of {evaluation.n_expected} answers are stored and scored"


def first_line(error: str | None) -> str:
    """First line of an error, short enough for a table."""
    lines = (error or "").strip().splitlines()
    if not lines:
        return "no message was stored"
    return lines[0] if len(lines[0]) <= _SHOWN_ERROR else lines[0][:_SHOWN_ERROR] + " …"


def device_tag(evaluation: EvaluationView) -> str:
    """Where an evaluation ran, in a few words: from its numerics fields, else from its environment.

    Args:
        evaluation: finished or not.

    Returns:
        For example ``cpu · float32 · batch 64``.
    """
    numerics, environment = evaluation.numerics or {}, evaluation.environment or {}
    parts = [str(numerics.get("device_name") or numerics.get("device") or _machine(environment))]
    if numerics.get("dtype"):
        parts.append(str(numerics["dtype"]))
    if numerics.get("batch_size"):
        parts.append(f"batch {numerics['batch_size']}")
    return " · ".join(parts)


def _machine(environment: Mapping[str, object]) -> str:
    gpus, cpu = environment.get("gpus"), environment.get("cpu")
    if isinstance(gpus, list) and gpus and isinstance(gpus[0], Mapping):
        return str(gpus[0].get("name", "unknown device"))
    if isinstance(cpu, Mapping):
        return str(cpu.get("model") or "unknown device")
    return "unknown device"
