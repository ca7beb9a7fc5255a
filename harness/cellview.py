"""One stored cell as text."""

from __future__ import annotations

import json
from typing import Any

from dare_bench.harness.errors import UserError, nearest
from dare_bench.harness.table import text_table
from dare_bench.results.queries import leaderboard_cells, samples, training_points
from dare_bench.results.store import Store
from dare_bench.results.views import CellView, EvaluationView, ScoringView, TrainingView


def find_cell(store: Store, name: str, suite: str | None) -> CellView:
    """The cell of a name, in the newest run of its suite.

    Args:
        store: open database.
        name: ``model/algorithm/benchmark/decoder/seed``, or the beginning of an evaluation fingerprint.
        suite: where to look; null = all.

    Raises:
        UserError: no such cell, or several suites hold it.
    """
    cells = leaderboard_cells(store, suite)
    found = [cell for cell in cells if cell.name == name]
    if not found and len(name) >= 8:
        found = [cell for cell in cells if cell.evaluation_fingerprint.startswith(name)][:1]
    if not found:
        near = nearest(name, [cell.name for cell in cells])
        hint = f" Did you mean {near!r}?" if near else ""
        shown = ", ".join(cell.name for cell in cells[:6]) + (", …" if len(cells) > 6 else "")
        raise UserError(f"no cell {name!r}.{hint} Cells: {shown or 'none; run a suite first'}")
    if len({cell.suite for cell in found}) > 1:
        names = ", ".join(sorted(cell.suite for cell in found))
        raise UserError(f"cell {name!r} is in the suites {names}; choose one with --suite")
    return found[0]


def render(store: Store, cell: CellView, n_samples: int) -> str:
    """A cell with its training, evaluation, scores and some answers.

    Args:
        store: open database.
        cell: which.
        n_samples: answers to show.
    """
    parts = [f"{cell.name}  (suite {cell.suite})  {cell.status}"]
    if cell.error:
        parts.append(f"error: {cell.error}")
    if cell.training:
        parts.append(_training(store, cell.training))
    if cell.evaluation:
        parts.append(_evaluation(cell.evaluation, cell.scoring))
        if n_samples:
            found = samples(store, cell.evaluation_fingerprint, limit=n_samples, trajectories=False)
            for sample in found:
                verdict = sample.score or {}
                read, value = verdict.get("extracted"), verdict.get("value")
                head = f"{sample.sample_id}  gold {sample.gold!r}  read {read!r}  score {value}"
                parts.append(f"{head}\n{_indent(sample.question)}\n  ->\n{_indent(sample.text)}")
    return "\n\n".join(parts)


def _training(store: Store, run: TrainingView) -> str:
    rows = [
        ["fingerprint", run.fingerprint],
        ["status", run.status],
        ["log", run.log_path or "-"],
        *_flat("train", run.config.get("train") or {}),
        *_flat("settings", run.config.get("settings") or {}),
        *_flat("data", dict(run.config.get("data") or [])),
        *_flat("base", run.config.get("base") or {}),
        *_flat("total", run.totals),
        ["wall", "-" if run.wall_s is None else f"{run.wall_s:.1f} s"],
    ]
    if run.checkpoint:
        rows.append(["checkpoint", f"{run.checkpoint['path']} (step {run.checkpoint['step']})"])
    points = training_points(store, run.fingerprint)
    if points:
        ends = [points[0], points[-1]] if len(points) > 1 else points
        rows += [[f"step {point.step}", _line(point.metrics)] for point in ends]
    return text_table(["training", ""], rows)


def _evaluation(run: EvaluationView, scoring: ScoringView | None) -> str:
    costs = run.costs
    rows = [
        ["fingerprint", run.fingerprint],
        ["status", run.status],
        ["log", run.log_path or "-"],
        ["benchmark", f"{run.benchmark}, protocol {run.protocol}"],
        ["comparability", run.hard_key],
        ["decoder", _line(run.decoder)],
        *_flat("checkpoint", run.numerics.get("checkpoint") or {}),
        ["answers", f"{costs.n} of {run.n_expected}"],
    ]
    if scoring:
        rows.append(["scorer", f"{scoring.scorer} version {scoring.scorer_version}: {scoring.status}"])
        rows += [[metric, f"{100 * value:.1f} %"] for metric, value in scoring.metrics.items()]
        rows.append(["outcomes", _line(scoring.statuses)])
    if costs.n:
        rows.append(["forwards (NFE)", f"{costs.nfe / costs.n:.2f} per answer"])
        per_forward = costs.tokens_text / max(costs.nfe, 1)
        rows.append(["tokens", f"{costs.tokens_text / costs.n:.1f} per answer, {per_forward:.2f} per forward"])
    if run.decode_wall_s:
        device = run.numerics.get("device_name", "-")
        rows.append(["speed", f"{costs.tokens_text / run.decode_wall_s:.0f} tokens/s on {device}"])
    return text_table(["evaluation", ""], rows)


def _flat(prefix: str, values: dict[str, Any]) -> list[list[str]]:
    return [[f"{prefix}.{key}", _line(value)] for key, value in values.items()]


def _line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
