"""Files made from the database: a JSON bundle, a CSV of cells, a JSONL of samples.

The same database gives the same bytes: no export time, no primary keys, sorted keys, one fixed order. A file appears
whole or not at all: it is written beside its place and renamed.
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from dare_bench.results.keys import canonical_json
from dare_bench.results.opening import StoreError
from dare_bench.results.queries import leaderboard_cells, samples, suites, training_curves
from dare_bench.results.transactions import Transactions
from dare_bench.results.views import CellView

#: Version of the bundle's form; raised when a reader of the old form would misread the new one.
BUNDLE_FORMAT = "dare-bench-bundle-1"

_CSV_IDENTITY = ("suite", "name", "model", "label", "algorithm", "benchmark", "decoder", "seed", "status")
_FINGERPRINTS = ("training_fingerprint", "evaluation_fingerprint", "scoring_fingerprint")
_CSV_COSTS = ("nfe", "tokens_text", "tokens_committed", "flops")


def bundle(store: Transactions, suite: str | None = None) -> dict[str, Any]:
    """Everything about the newest run of each suite but the samples: what a leaderboard needs.

    Args:
        store: open store.
        suite: name of one suite, all when None.

    Returns:
        JSON dictionary: format, suites, cells (with `status` and the fingerprints of their jobs), trainings (with
        points), evaluations, scorings; the last three by fingerprint.

    Raises:
        StoreError: no such suite.
    """
    cells = leaderboard_cells(store, suite)
    trainings = {cell.training.fingerprint: cell.training for cell in cells if cell.training}
    curves = training_curves(store, trainings)
    return {
        "format": BUNDLE_FORMAT,
        "suites": [_plain(view) for view in suites(store, suite)],
        "cells": [{**{name: getattr(cell, name) for name in _CSV_IDENTITY}, **_fingerprints(cell)} for cell in cells],
        "trainings": {
            key: {**_plain(view), "points": [asdict(point) for point in curves[key]]}
            for key, view in sorted(trainings.items())
        },
        "evaluations": {cell.evaluation.fingerprint: _plain(cell.evaluation) for cell in cells if cell.evaluation},
        "scorings": {cell.scoring.fingerprint: _plain(cell.scoring) for cell in cells if cell.scoring},
    }


def csv_text(cells: Iterable[CellView]) -> str:
    """One line per cell.

    Args:
        cells: see `dare_bench.results.queries.leaderboard_cells`.

    Returns:
        CSV with a header; a cell that is not done has no accuracy (empty, never zero).
    """
    cells = list(cells)
    metrics = sorted({name for cell in cells if cell.scoring for name in cell.scoring.metrics})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    counts = ("n", "n_expected", "score", *(f"metric_{name}" for name in metrics))
    keys = ("protocol", "hard_key", *_FINGERPRINTS)
    writer.writerow((*_CSV_IDENTITY, *counts, *_CSV_COSTS, "decode_wall_s", *keys, "error"))
    for cell in cells:
        evaluation = cell.evaluation
        scoring = cell.scoring if cell.status == "done" else None
        costs = evaluation.costs if evaluation else None
        writer.writerow(
            (
                *(getattr(cell, name) for name in _CSV_IDENTITY),
                costs.n if costs else None,
                evaluation.n_expected if evaluation else None,
                scoring.score if scoring else None,
                *(scoring.metrics.get(name) if scoring else None for name in metrics),
                *(getattr(costs, name, None) for name in _CSV_COSTS),
                evaluation.decode_wall_s if evaluation else None,
                evaluation.protocol if evaluation else None,
                evaluation.hard_key if evaluation else None,
                *_fingerprints(cell).values(),
                cell.error,
            )
        )
    return out.getvalue()


def sample_lines(store: Transactions, suite: str | None = None, *, trajectories: bool = False) -> Iterator[str]:
    """One JSON line per sample of every evaluation of the cells, an evaluation shared by several cells once.

    Args:
        store: open store.
        suite: name of one suite, all when None.
        trajectories: with token ids, step maps and confidences.

    Yields:
        Lines without line end, evaluations in the order of the grid, samples by id.

    Raises:
        StoreError: no such suite.
    """
    # One evaluation at a time: the samples of a database need not fit into memory.
    found = {cell.evaluation_fingerprint: cell for cell in leaderboard_cells(store, suite) if cell.evaluation}
    for key, cell in found.items():
        for sample in samples(store, key, trajectories=trajectories, scoring_fingerprint=cell.scoring_fingerprint):
            row = asdict(sample)
            if not trajectories:
                del row["trajectory"]
            yield canonical_json({"evaluation": key, "benchmark": cell.benchmark, "model": cell.model, **row})


def export(
    store: Transactions,
    path: str | Path,
    suite: str | None = None,
    *,
    form: str | None = None,
    trajectories: bool = False,
) -> Path:
    """Write one file.

    Args:
        store: open store.
        path: target; an existing file is replaced.
        suite: name of one suite, all when None.
        form: "json" (bundle), "csv" (cells) or "jsonl" (samples); by the file's suffix when None.
        trajectories: for "jsonl", with trajectories.

    Returns:
        The path written.

    Raises:
        StoreError: no such form or suite, or the place cannot be written.
    """
    path = Path(path)
    form = form or path.suffix.lstrip(".").lower()
    writers: dict[str, Callable[[], Iterable[str]]] = {
        "json": lambda: [canonical_json(bundle(store, suite)), "\n"],
        "csv": lambda: [csv_text(leaderboard_cells(store, suite))],
        "jsonl": lambda: (line + "\n" for line in sample_lines(store, suite, trajectories=trajectories)),
    }
    if form not in writers:
        raise StoreError(f"there is no export form {form!r} (of {path.name}); allowed: {', '.join(writers)}")
    try:
        with _beside(path) as file:
            for text in writers[form]():
                file.write(text)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; choose another place") from error
    return path


@contextmanager
def _beside(path: Path) -> Iterator[IO[str]]:
    """A temporary file in the same folder that takes the name of `path` when the block ends without exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; an export is to be read by others as any new file is.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _fingerprints(cell: CellView) -> dict[str, str | None]:
    return {name: getattr(cell, name) for name in _FINGERPRINTS}


def _plain(view: Any) -> dict[str, Any]:
    """A view as JSON: times as ISO 8601, without its primary key (which depends on the order of writing)."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in asdict(view).items()
        if name != "id"
    }
