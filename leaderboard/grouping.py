"""Which rows may share a table: rows of one suite whose comparability keys agree on every benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dare_bench.leaderboard.runs import RunSource
from dare_bench.results.keys import differing_fields

_SHOWN_VALUE = 60


@dataclass
class RowSources:
    """Runs of one row (model, label, decoder), by benchmark; all runs of a benchmark share its key."""

    model: str
    label: str
    decoder: str
    runs: dict[str, list[RunSource]] = field(default_factory=dict)

    @property
    def keys(self) -> dict[str, str]:
        """benchmark -> comparability key, where it is known."""
        known = {}
        for benchmark, sources in self.runs.items():
            key = next((s.hard_key for s in sources if s.hard_key), "")
            if key:
                known[benchmark] = key
        return known

    @property
    def is_base(self) -> bool:
        """Whether this is the untrained model."""
        return self.label == "base"


@dataclass
class Group:
    """Rows that may be compared."""

    suite: str
    keys: dict[str, str] = field(default_factory=dict)
    rows: list[RowSources] = field(default_factory=list)


def group_rows(sources: Sequence[RunSource]) -> list[Group]:
    """Put rows into tables.

    A row joins the first table of its suite that contradicts none of its keys and shares one; a row without any key
    (nothing was evaluated yet) joins the table of its model, else the first one: it has no number to compare.

    Args:
        sources: all runs.

    Returns:
        Groups in order of suite and first row.
    """
    groups: list[Group] = []
    rows = _rows(sources)
    for suite, row in sorted(rows, key=lambda item: (item[0], -len(item[1].keys))):
        own = [g for g in groups if g.suite == suite]
        fitting = [g for g in own if all(g.keys.get(b, k) == k for b, k in row.keys.items())]
        if row.keys:
            fitting.sort(key=lambda g: not set(row.keys.items()) & set(g.keys.items()))
        else:
            fitting.sort(key=lambda g: not any(r.model == row.model for r in g.rows))
        if fitting:
            group = fitting[0]
        else:
            group = Group(suite)
            groups.append(group)
        group.rows.append(row)
        group.keys.update(row.keys)
    for group in groups:
        group.rows.sort(key=lambda r: (r.model, not r.is_base, r.label, r.decoder))
    return sorted(groups, key=lambda g: (g.suite, g.rows[0].model, g.rows[0].label, sorted(g.keys.items())))


def differences(group: Group, other: Group) -> list[str]:
    """Why two tables are two, in words.

    Args:
        group: later table.
        other: earlier table of the same suite.

    Returns:
        Lines such as ``mini_gsm: decode_budget.max_new_tokens is 64 here, 128 above``; one set of lines per benchmark
        whose keys differ.
    """
    lines = []
    for benchmark in sorted(group.keys.keys() & other.keys.keys()):
        if group.keys[benchmark] == other.keys[benchmark]:
            continue
        here, above = _fields(group, benchmark), _fields(other, benchmark)
        for name, mine, theirs in differing_fields(here, above):
            lines.append(f"{benchmark}: {name} is {_short(mine)} here, {_short(theirs)} above")
    return lines


def _rows(sources: Sequence[RunSource]) -> list[tuple[str, RowSources]]:
    """Rows of the grid. Seeds evaluated under different keys (say, before and after a change) become two rows."""
    found: dict[tuple[str, str, str, str, int], RowSources] = {}
    variants: dict[tuple[str, str, str, str, str], list[str]] = {}
    for source in sources:
        cell = source.cell
        ident = (cell.suite, cell.model, cell.label, cell.decoder)
        known = variants.setdefault((*ident, cell.benchmark), [])
        if source.hard_key and source.hard_key not in known:
            known.append(source.hard_key)
        variant = known.index(source.hard_key) if source.hard_key else 0
        row = found.setdefault((*ident, variant), RowSources(cell.model, cell.label, cell.decoder))
        row.runs.setdefault(cell.benchmark, []).append(source)
    return [(key[0], row) for key, row in found.items()]


def _fields(group: Group, benchmark: str) -> dict[str, Any]:
    for row in group.rows:
        for source in row.runs.get(benchmark, []):
            if source.cell.evaluation is not None and source.hard_key == group.keys[benchmark]:
                return source.cell.evaluation.hard_fields
    return {}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN_VALUE else text[:_SHOWN_VALUE] + "…"
