"""From the database to the page of one cell."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dare_bench.leaderboard.escaping import clip
from dare_bench.leaderboard.findings import run_verdict
from dare_bench.leaderboard.histogram import bars
from dare_bench.leaderboard.models import Entry, LeaderRow, Run, Table
from dare_bench.leaderboard.runs import RunSource, device_tag
from dare_bench.leaderboard.source import Answer, answers
from dare_bench.leaderboard.stats.accuracy import Interval, wilson
from dare_bench.leaderboard.stats.efficiency import forward_stats, tokens_per_forward, tokens_per_second
from dare_bench.leaderboard.trajectory import Denoising, denoising
from dare_bench.results import queries
from dare_bench.results.queries import SampleView
from dare_bench.results.transactions import Transactions
from dare_bench.results.views import CellView
from markupsafe import Markup

#: Samples shown on a page, and how many of them correct and wrong; the rest is filled with other outcomes first.
N_SHOWN, N_CORRECT, N_WRONG = 60, 20, 20

#: Characters of a text shown on a page. All of it stays in the database and in exports.
TEXT_LIMITS = {
    "question": 1500,
    "gold": 300,
    "text": 2200,
    "prompt": 1600,
    "extracted": 200,
    "detail": 400,
    "brief": 140,
}


@dataclass(frozen=True)
class ShownText:
    """A text cut to its limit, and how many characters were left out."""

    text: str
    cut: int


@dataclass(frozen=True)
class ShownSample:
    """One answer on a cell page; `verdict` is a word (correct, wrong, no answer, ...)."""

    sample: SampleView
    verdict: str
    texts: dict[str, ShownText]


@dataclass(frozen=True)
class CellPage:
    """Everything a cell page shows.

    Attributes:
        run, row, table, entry: its place on the leaderboard. cell: database view. verdict: one line. interval: Wilson
        interval of this one run. facts: (label, value) pairs of cost. settings: panel title -> (label, value) pairs.
        counts: outcome -> answers. histograms: charts. curves: training chart. samples: shown answers. n_answers: all
        stored. viewer: denoising of one answer. viewer_sample: whose it is.
    """

    run: Run
    row: LeaderRow
    table: Table
    entry: Entry
    cell: CellView
    verdict: str
    interval: Interval | None
    facts: tuple[tuple[str, str, str], ...]
    settings: dict[str, list[tuple[str, str]]]
    counts: dict[str, int]
    histograms: tuple[Markup, ...]
    curves: Markup | None
    samples: tuple[ShownSample, ...]
    n_answers: int
    viewer: Denoising | None
    viewer_sample: ShownSample | None


def cell_page(
    store: Transactions,
    source: RunSource,
    place: tuple[Table, LeaderRow, Entry],
    *,
    command: str,
    curves: Markup | None,
) -> CellPage:
    """Read and prepare one cell.

    Args:
        store: open store.
        source: the run.
        place: table, row and entry it is shown in.
        command: command line of the suite run.
        curves: training chart of its training run, if any.

    Returns:
        The page model.
    """
    table, row, entry = place
    run = next(r for r in entry.runs if r.key == source.run.key)
    cell = source.cell
    light = answers(store, cell.evaluation_fingerprint, cell.scoring_fingerprint) if cell.evaluation else []
    chosen = stratified(light)
    viewer_answer = _viewer_answer(light)
    shown = _samples(store, cell, chosen)
    viewer = viewer_sample = None
    if viewer_answer is not None:
        found = queries.samples(
            store,
            cell.evaluation_fingerprint,
            ids=[viewer_answer.sample_id],
            scoring_fingerprint=cell.scoring_fingerprint,
        )
        sample = next(s for s in found if s.repeat == viewer_answer.repeat)
        if sample.trajectory is not None:
            viewer, viewer_sample = denoising(sample.trajectory), _shown(sample)
    counts: dict[str, int] = {}
    for answer in light:
        word = verdict_word(answer.value, answer.status)
        counts[word] = counts.get(word, 0) + 1
    return CellPage(
        run=run,
        row=row,
        table=table,
        entry=entry,
        cell=cell,
        verdict=run_verdict(run, entry),
        interval=wilson(run.accuracy, run.n) if run.accuracy is not None and run.n else None,
        facts=_facts(cell, light),
        settings=_settings(cell, command),
        counts=dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        histograms=_histograms(light),
        curves=curves,
        samples=tuple(shown),
        n_answers=len(light),
        viewer=viewer,
        viewer_sample=viewer_sample,
    )


def verdict_word(value: float | None, status: str | None) -> str:
    """Outcome of one answer in words, from its headline score and the scorer's status."""
    if value is None or status is None:
        return "not scored"
    if value >= 1.0:
        return "correct"
    if value > 0.0:
        return "partly correct"
    return {"scored": "wrong"}.get(status, status.replace("_", " "))


def stratified(light: Sequence[Answer]) -> list[Answer]:
    """Choose the answers a page shows: 20 correct, 20 wrong, then the other outcomes, then more of any.

    The order is that of a hash of the sample id, so that pages of one benchmark show the same questions where they
    can, whatever the model.

    Args:
        light: all answers.

    Returns:
        At most `N_SHOWN` answers, by sample id.
    """
    ordered = sorted(
        light, key=lambda a: (hashlib.sha256(a.sample_id.encode("utf-8", "replace")).hexdigest(), a.repeat)
    )
    words = {id(a): verdict_word(a.value, a.status) for a in ordered}
    correct = [a for a in ordered if words[id(a)] == "correct"][:N_CORRECT]
    wrong = [a for a in ordered if words[id(a)] == "wrong"][:N_WRONG]
    other = [a for a in ordered if words[id(a)] not in ("correct", "wrong")]
    chosen = [*correct, *wrong, *other][:N_SHOWN]
    taken = {id(a) for a in chosen}
    chosen += [a for a in ordered if id(a) not in taken][: N_SHOWN - len(chosen)]
    return sorted(chosen, key=lambda a: (a.sample_id, a.repeat))


def _viewer_answer(light: Sequence[Answer]) -> Answer | None:
    stored = [a for a in light if a.has_trajectory]
    return next((a for a in stored if a.value is not None and a.value >= 1.0), stored[0] if stored else None)


def _samples(store: Transactions, cell: CellView, chosen: Sequence[Answer]) -> list[ShownSample]:
    if not chosen:
        return []
    wanted = {(a.sample_id, a.repeat) for a in chosen}
    found = queries.samples(
        store,
        cell.evaluation_fingerprint,
        ids=sorted({sample_id for sample_id, _ in wanted}),
        trajectories=False,
        scoring_fingerprint=cell.scoring_fingerprint,
    )
    return [_shown(sample) for sample in found if (sample.sample_id, sample.repeat) in wanted]


def _shown(sample: SampleView) -> ShownSample:
    score = sample.score or {}
    texts = {name: getattr(sample, name) for name in ("question", "gold", "text", "prompt")}
    texts["brief"] = sample.question
    texts |= {name: score.get(name) or "" for name in ("extracted", "detail")}
    return ShownSample(
        sample=sample,
        verdict=verdict_word(score.get("value"), score.get("status")),
        texts={name: ShownText(*clip(text, TEXT_LIMITS[name])) for name, text in texts.items()},
    )


def _facts(cell: CellView, light: Sequence[Answer]) -> tuple[tuple[str, str, str], ...]:
    """(label, value, unit or remark) of the decoding cost."""
    from dare_bench.leaderboard.formats import quantity

    if not light or cell.evaluation is None:
        return ()
    nfe = forward_stats([a.nfe for a in light])
    tokens = sum(a.tokens for a in light)
    tpf = tokens_per_forward(tokens, nfe.total)
    tps = tokens_per_second(tokens, cell.evaluation.decode_wall_s)
    device = device_tag(cell.evaluation)
    costs = cell.evaluation.costs
    return (
        ("Forwards per answer", f"{nfe.mean:.1f}", f"90 % of answers need at most {nfe.p90:.0f}"),
        ("Tokens per forward", "–" if tpf is None else f"{tpf:.2f}", "ratio of totals"),
        ("Tokens per second", quantity(tps), device if tps is not None else "not measured"),
        ("Tokens per answer", f"{tokens / len(light):.1f}", "before the first end token"),
        ("Ended at the length limit", f"{costs.n_length}", f"of {costs.n} answers"),
        ("Decoding FLOPs", quantity(costs.flops), "all answers, 2 per multiply-add"),
    )


def _settings(cell: CellView, command: str) -> dict[str, list[tuple[str, str]]]:
    """Provenance panels; every stored setting appears in one of them."""
    panels: dict[str, list[tuple[str, str]]] = {
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
        panels["Keys"] = [
            ("hard key", evaluation.hard_key),
            *flat(evaluation.hard_fields),
        ]
        panels["Decoder"] = [("draws with seed", _text(evaluation.seed)), *flat(evaluation.decoder)]
        panels["Data and protocol"] = [("protocol", evaluation.protocol), *flat(evaluation.data)]
        panels["Numerics"] = flat(evaluation.numerics)
        panels["Times"] = [
            ("started", _time(evaluation.started_at)),
            ("finished", _time(evaluation.finished_at)),
            ("decoding, s", _text(evaluation.decode_wall_s)),
            ("whole job, s", _text(evaluation.wall_s)),
        ]
    if scoring is not None:
        panels["Scorer"] = [
            ("scorer", scoring.scorer),
            ("version", str(scoring.scorer_version)),
            *flat(scoring.metrics),
        ]
    if training is not None:
        panels["Training"] = [
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
        panels["Environment"] = flat(evaluation.environment)
    return {title: pairs for title, pairs in panels.items() if pairs}


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
    kept, cut = clip(text, 1000)
    return f"{kept} … ({cut} more characters)" if cut else kept


def _time(value: Any) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%S UTC") if value is not None else "–"


def _histograms(light: Sequence[Answer]) -> tuple[Markup, ...]:
    if not light:
        return ()
    return (
        bars([a.nfe for a in light], "h-nfe", "Forwards per answer", "forwards"),
        bars([a.tokens for a in light], "h-len", "Length of answers", "tokens"),
    )
