"""What the pages show, as plain data: every number here is recomputed from samples."""

from __future__ import annotations

from dataclasses import dataclass

from dare_bench.leaderboard.stats.accuracy import Interval
from markupsafe import Markup


@dataclass(frozen=True)
class Comparison:
    """One run against the base model's run on the same questions.

    Attributes:
        delta: accuracy minus the base's, in [-1, 1].
        lo, hi: 95 % Bonett-Price interval of `delta`.
        gained: questions only this run got right. lost: questions only the base got right.
        p: two-sided exact McNemar p.
    """

    delta: float
    lo: float
    hi: float
    gained: int
    lost: int
    p: float


@dataclass(frozen=True)
class Run:
    """One evaluation of an entry; a greedy base model's run answers every seed of the grid.

    Attributes:
        key: name of the cell page, without suffix.
        name: model/label/benchmark/decoder/seed as in the manifest.
        seeds: grid seeds it answers.
        state: ``done``, ``running``, ``incomplete``, ``failed`` or ``not run``.
        reason: why there is no accuracy, in words; empty when done.
        n: questions scored. accuracy: strict rate, None unless done. value_accuracy: lenient rate, None if the
            scorer has none.
        is_fixed: an untrained model decoded without drawing: there is nothing a seed could change.
        comparison: against the base's run, where there is one. comparison_note: why not, else empty.
    """

    key: str
    name: str
    seeds: tuple[int, ...]
    state: str
    reason: str = ""
    n: int = 0
    accuracy: float | None = None
    value_accuracy: float | None = None
    is_fixed: bool = False
    comparison: Comparison | None = None
    comparison_note: str = ""


@dataclass(frozen=True)
class Cost:
    """Decoding cost of an entry, over all its finished runs.

    Attributes:
        nfe_mean: forwards per answer. tpf: tokens per forward (ratio of totals). tps: tokens per second of the decode
        section. device: where that was measured.
    """

    nfe_mean: float
    tpf: float | None
    tps: float | None
    device: str


@dataclass(frozen=True)
class Entry:
    """One row on one benchmark.

    Attributes:
        benchmark: name. runs: all runs, finished or not. accuracy: mean of finished runs, None if there is none.
        value_accuracy: mean lenient rate. interval: 95 % interval of `accuracy`. covers: what it covers, in words.
        n: questions per run. n_done: finished runs.
        delta: mean difference from the base. delta_lo, delta_hi: its 95 % interval. p: one p for the entry. p_holm:
            corrected over the family. basis: ``checkpoints`` or ``algorithm``: what the claim is about.
        verdict: ``better``, ``worse``, ``undecided`` or empty (no comparison).
        note: why there is no comparison.
    """

    benchmark: str
    runs: tuple[Run, ...]
    accuracy: float | None = None
    value_accuracy: float | None = None
    interval: Interval | None = None
    covers: str = ""
    n: int = 0
    n_done: int = 0
    delta: float | None = None
    delta_lo: float | None = None
    delta_hi: float | None = None
    p: float | None = None
    p_holm: float | None = None
    basis: str = ""
    verdict: str = ""
    note: str = ""
    cost: Cost | None = None

    @property
    def state(self) -> str:
        """State of the runs in one word; the worst one when they differ."""
        states = {run.state for run in self.runs}
        return next((s for s in ("failed", "incomplete", "running", "not run") if s in states), "done")


@dataclass(frozen=True)
class TrainingCost:
    """Training cost of one row, mean per training run.

    Attributes:
        tokens: tokens forwarded in training, None if not recorded. rollout_tokens: tokens generated while training.
        device_hours: devices times held hours. runs: training runs averaged.
    """

    tokens: float | None
    rollout_tokens: float | None
    device_hours: float | None
    runs: int


@dataclass(frozen=True)
class LeaderRow:
    """Model, algorithm and decoder with its entries (benchmark -> entry)."""

    model: str
    label: str
    algorithm: str
    decoder: str
    is_base: bool
    entries: dict[str, Entry]
    training: TrainingCost | None
    flags: tuple[str, ...]


@dataclass(frozen=True)
class BenchmarkColumn:
    """A benchmark of one table: protocol and the key its rows share, the axis of its interval bars, and the device
    tag when all rows have the same one (else empty, and every row shows its own)."""

    name: str
    protocol: str
    n: int
    hard_key: str
    family_size: int
    lo: float
    hi: float
    device: str


@dataclass(frozen=True)
class Table:
    """Rows that may be compared, with the benchmarks they share."""

    ident: str
    suite: str
    title: str
    benchmarks: tuple[BenchmarkColumn, ...]
    models: tuple[tuple[str, tuple[LeaderRow, ...]], ...]
    differences: tuple[str, ...] = ()
    charts: tuple[tuple[str, Markup], ...] = ()  # (benchmark, chart)
    chart_note: str = ""

    @property
    def rows(self) -> list[LeaderRow]:
        """All rows in the order shown."""
        return [row for _, rows in self.models for row in rows]


@dataclass(frozen=True)
class SuiteHeader:
    """One suite run: what ran, when, from which source."""

    name: str
    status: str
    started: str
    finished: str
    commit: str
    command: str
    resolved: str
    n_cells: int


@dataclass(frozen=True)
class Index:
    """The leaderboard page."""

    title: str
    finding: str
    newest: str
    commit: str
    suites: tuple[SuiteHeader, ...]
    tables: tuple[Table, ...]
    counts: dict[str, int]
