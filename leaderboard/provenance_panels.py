"""Settings of a cell as panels of (name, text): every stored setting appears in one of them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from dare_bench.leaderboard.escaping import clip
from dare_bench.results.views import CellView

_MAX_VALUE = 1000


def panels(cell: CellView, command: str) -> dict[str, list[tuple[str, str]]]:
    """Provenance of a cell.

    Args:
        cell: with evaluation, training and scoring where they exist.
        command: command line of the suite run.

    Returns:
        Panel title -> (name, text) pairs, in the order of the page; empty panels are left out.
    """
    found: dict[str, list[tuple[str, str]]] = {
        "This cell": [
            ("command", command),
            ("show it", f"dare-bench show {shlex.quote(cell.name)}"),
            ("cell", cell.name),
            ("evaluation", cell.evaluation_fingerprint),
            ("scoring", cell.scoring_fingerprint),
            ("training", cell.training_fingerprint or "none: untrained base model"),
        ]
    }
    evaluation, training, scoring = cell.evaluation, cell.training, cell.scoring
    if evaluation is not None:
        found["Keys"] = [
            ("hard key", evaluation.hard_key),
            *flat(evaluation.hard_fields),
        ]
        found["Decoder"] = [("draws with seed", _text(evaluation.seed)), *flat(evaluation.decoder)]
        found["Data and protocol"] = [("protocol", evaluation.protocol), *flat(evaluation.data)]
        found["Numerics"] = flat(evaluation.numerics)
        found["Times"] = [
            ("started", _time(evaluation.started_at)),
            ("finished", _time(evaluation.finished_at)),
            ("decoding, s", _text(evaluation.decode_wall_s)),
            ("whole job, s", _text(evaluation.wall_s)),
        ]
    if scoring is not None:
        found["Scorer"] = [
            ("scorer", scoring.scorer),
            ("version", str(scoring.scorer_version)),
            *flat(scoring.metrics),
        ]
    if training is not None:
        found["Training"] = [
            ("algorithm", training.algorithm),
            ("preset", training.preset or "none"),
            ("seed", str(training.seed)),
            ("status", training.status),
            *[(f"checkpoint {name}", _text(value)) for name, value in (training.checkpoint or {}).items()],
            ("job, s", _text(training.wall_s)),
            *flat(training.totals, "total"),
            *flat(training.config, "config"),
        ]
    if evaluation is not None and evaluation.environment:
        found["Environment"] = flat(evaluation.environment)
    return {title: pairs for title, pairs in found.items() if pairs}


def flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as (dotted name, text), sorted by name; lists of plain values stay on one line."""
    pairs: list[tuple[str, str]] = []
    for name in sorted(value):
        label = f"{prefix}.{name}" if prefix else name
        inner = value[name]
        if isinstance(inner, Mapping) and inner:
            pairs += flat(inner, label)
        else:
            pairs.append((label, _text(inner)))
    return pairs


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    kept, cut = clip(text, _MAX_VALUE)
    return f"{kept} … ({cut} more characters)" if cut else kept


def _time(value: datetime | None) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%S UTC") if value is not None else "–"
