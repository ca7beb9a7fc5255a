"""From the database to the page of one cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dare_bench.leaderboard.escaping import clip
from dare_bench.leaderboard.findings import run_verdict
from dare_bench.leaderboard.formats import quantity
from dare_bench.leaderboard.histogram import bars
from dare_bench.leaderboard.models import Entry, LeaderRow, Run, Table
from dare_bench.leaderboard.provenance_panels import panels
from dare_bench.leaderboard.runs import RunSource, device_tag
from dare_bench.leaderboard.selection import stratified, verdict_word, viewer_answer
from dare_bench.leaderboard.source import Answer, answers
from dare_bench.leaderboard.stats.accuracy import Interval, wilson
from dare_bench.leaderboard.stats.efficiency import forward_stats, tokens_per_forward, tokens_per_second
from dare_bench.leaderboard.trajectory import Denoising, denoising
from dare_bench.results import queries
from dare_bench.results.queries import SampleView
from dare_bench.results.transactions import Transactions
from dare_bench.results.views import CellView
from markupsafe import Markup

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
    watched = viewer_answer(light)
    shown = _samples(store, cell, chosen)
    viewer = viewer_sample = None
    if watched is not None:
        found = queries.samples(
            store,
            cell.evaluation_fingerprint,
            ids=[watched.sample_id],
            scoring_fingerprint=cell.scoring_fingerprint,
        )
        sample = next(s for s in found if s.repeat == watched.repeat)
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
        settings=panels(cell, command),
        counts=dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        histograms=_histograms(light),
        curves=curves,
        samples=tuple(shown),
        n_answers=len(light),
        viewer=viewer,
        viewer_sample=viewer_sample,
    )


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


def _histograms(light: Sequence[Answer]) -> tuple[Markup, ...]:
    if not light:
        return ()
    return (
        bars([a.nfe for a in light], "h-nfe", "Forwards per answer", "forwards"),
        bars([a.tokens for a in light], "h-len", "Length of answers", "tokens"),
    )
