"""From the database to the leaderboard page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from dare_bench.leaderboard import charts
from dare_bench.leaderboard.entries import make_entry, row_flags, training_cost, with_verdicts
from dare_bench.leaderboard.findings import headline
from dare_bench.leaderboard.grouping import Group, RowSources, differences, group_rows
from dare_bench.leaderboard.models import BenchmarkColumn, Entry, Index, LeaderRow, SuiteHeader, Table
from dare_bench.leaderboard.runs import RunSource, run_sources
from dare_bench.leaderboard.source import outcomes
from dare_bench.results import queries
from dare_bench.results.transactions import Transactions
from dare_bench.results.views import CellView, SuiteView


@dataclass(frozen=True)
class Board:
    """The leaderboard and what the cell pages need besides.

    Attributes:
        index: the page. sources: runs in the order of the grid. placed: page key -> (table,
        row, entry) it is shown in.
    """

    index: Index
    sources: list[RunSource]
    placed: dict[str, tuple[Table, LeaderRow, Entry]]


def board(store: Transactions, suite: str | None = None, *, with_charts: bool = True) -> Board:
    """Compute the leaderboard.

    Args:
        store: an open store.
        suite: only this suite; None = all.
        with_charts: draw the charts (the terminal table needs none).

    Returns:
        The page model with its sources.

    Raises:
        StoreError: the named suite was never run in this database.
    """
    cells = queries.leaderboard_cells(store, suite)
    suites = queries.suites(store, suite)
    sources = run_sources(cells)
    groups = group_rows(sources)
    tables: list[Table] = []
    for number, group in enumerate(groups, 1):
        earlier = next((g for g in groups[: number - 1] if g.suite == group.suite), None)
        table = _table(store, group, f"t{number}", differences(group, earlier) if earlier else [])
        if with_charts:
            drawn, note = charts.accuracy_against_forwards(table)
            table = replace(table, charts=drawn, chart_note=note)
        tables.append(table)
    placed = {
        run.key: (table, row, entry)
        for table in tables
        for row in table.rows
        for entry in row.entries.values()
        for run in entry.runs
    }
    return Board(_index(suites, cells, sources, tables), sources, placed)


def _table(store: Transactions, group: Group, ident: str, differing: Sequence[str]) -> Table:
    names = sorted({b for row in group.rows for b in row.runs})
    entries: list[dict[str, Entry]] = [{} for _ in group.rows]
    columns = []
    for name in names:
        here = [(i, row) for i, row in enumerate(group.rows) if name in row.runs]
        done = [s for _, row in here for s in row.runs[name] if s.run.accuracy is not None]
        # One benchmark at a time: outcomes of a whole large store would fill the memory.
        answers = outcomes(store, {s.cell.scoring_fingerprint for s in done})
        made = [make_entry(name, row.runs[name], _base_runs(group, row, name), answers) for _, row in here]
        made = with_verdicts(made)
        for (i, _), entry in zip(here, made, strict=True):
            entries[i][name] = entry
        columns.append(_column(name, group, made, here))
    leader_rows = [
        LeaderRow(
            model=row.model,
            label=row.label,
            algorithm=next(iter(row.runs.values()))[0].cell.algorithm,
            decoder=row.decoder,
            is_base=row.is_base,
            entries=found,
            training=training_cost([s for runs in row.runs.values() for s in runs]),
            flags=row_flags(found, n_seeds=len({seed for e in found.values() for r in e.runs for seed in r.seeds})),
        )
        for row, found in zip(group.rows, entries, strict=True)
    ]
    by_model: dict[str, list[LeaderRow]] = {}
    for leader_row in leader_rows:
        by_model.setdefault(leader_row.model, []).append(leader_row)
    return Table(
        ident=ident,
        suite=group.suite,
        title=" · ".join(names),
        benchmarks=tuple(columns),
        models=tuple((model, tuple(found)) for model, found in by_model.items()),
        differences=tuple(differing),
    )


def _base_runs(group: Group, row: RowSources, benchmark: str) -> list[RunSource]:
    if row.is_base:
        return []
    for other in group.rows:
        if other.is_base and (other.model, other.decoder) == (row.model, row.decoder) and benchmark in other.runs:
            return other.runs[benchmark]
    return []


def _column(name: str, group: Group, made: Sequence[Entry], here: Sequence[tuple[int, RowSources]]) -> BenchmarkColumn:
    """Protocol, key and the common axis of the interval bars: all intervals of the column with a margin."""
    evaluations = [s.cell.evaluation for _, row in here for s in row.runs[name] if s.cell.evaluation is not None]
    intervals = [e.interval for e in made if e.interval is not None]
    lo, hi = min((i.lo for i in intervals), default=0.0), max((i.hi for i in intervals), default=1.0)
    devices = {e.cost.device for e in made if e.cost is not None}
    margin = max(0.02, (hi - lo) * 0.05)
    return BenchmarkColumn(
        name=name,
        protocol=evaluations[0].protocol if evaluations else "",
        n=max((e.n for e in made), default=0),
        hard_key=group.keys.get(name, ""),
        family_size=sum(e.p is not None for e in made),
        lo=max(0.0, lo - margin),
        hi=min(1.0, hi + margin),
        device=next(iter(devices)) if len(devices) == 1 else "",
    )


def _index(
    suites: Sequence[SuiteView], cells: Sequence[CellView], sources: Sequence[RunSource], tables: Sequence[Table]
) -> Index:
    states: dict[str, int] = {}
    for source in sources:
        states[source.run.state] = states.get(source.run.state, 0) + 1
    evaluations = {c.evaluation.fingerprint: c.evaluation.costs.n for c in cells if c.evaluation is not None}
    counts = {
        "models": len({c.model for c in cells}),
        "algorithms": len({c.label for c in cells} - {"base"}),
        "benchmarks": len({c.benchmark for c in cells}),
        "decoders": len({c.decoder for c in cells}),
        "answers": sum(evaluations.values()),
        **{state: states[state] for state in ("done", "running", "incomplete", "failed", "not run") if state in states},
    }
    newest = max(suites, key=lambda view: view.id, default=None)
    return Index(
        title=" · ".join(view.suite for view in suites) or "nothing has been run yet",
        finding=headline(tables),
        newest=day(newest.finished_at or newest.started_at) if newest is not None else "–",
        commit=commit(newest.environment) if newest is not None else "–",
        suites=tuple(_suite(view) for view in suites),
        tables=tuple(tables),
        counts=counts,
    )


def _suite(view: SuiteView) -> SuiteHeader:
    return SuiteHeader(
        name=view.suite,
        status=view.status,
        started=moment(view.started_at),
        finished=moment(view.finished_at),
        commit=commit(view.environment),
        command=view.command_line,
        resolved=json.dumps(view.resolved, indent=1, sort_keys=True, ensure_ascii=False),
        n_cells=view.n_cells,
    )


def commit(environment: Mapping[str, Any] | None) -> str:
    """Short git commit of an environment, with ``+changes`` for a modified source tree; ``–`` if unknown."""
    source = (environment or {}).get("source")
    if not isinstance(source, Mapping) or not source.get("commit"):
        return "–"
    return str(source["commit"])[:10] + ("+changes" if source.get("dirty") else "")


def day(value: datetime | None) -> str:
    """``2025-11-30``; ``–`` for None."""
    return value.strftime("%Y-%m-%d") if value is not None else "–"


def moment(value: datetime | None) -> str:
    """``2025-11-30 19:07 UTC``; ``–`` for None (stored times are UTC)."""
    return value.strftime("%Y-%m-%d %H:%M UTC") if value is not None else "–"
