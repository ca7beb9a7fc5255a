"""The leaderboard as a table for the terminal."""

from __future__ import annotations

from dare_bench.leaderboard.escaping import visible
from dare_bench.leaderboard.formats import p_value, percent, points, quantity
from dare_bench.leaderboard.models import Entry, LeaderRow
from dare_bench.leaderboard.views import board
from dare_bench.results.transactions import Transactions
from rich.table import Table as RichTable
from rich.text import Text

_NAMES = ("model", "algorithm", "decoder", "benchmark")
_LEGEND = (
    "▲ better ▼ worse after Holm at 0.05, ~ not established; ± is half of a 95 % interval; trained on: training tokens "
    "+ tokens sampled for it"
)
_MARKS = {"better": ("▲", "green"), "worse": ("▼", "red"), "undecided": ("~", "dim"), "": ("", "")}


def table(store: Transactions, suite: str | None = None) -> RichTable:
    """Main columns of the leaderboard: one line per row and benchmark.

    Args:
        store: open store.
        suite: only this suite; None = all.

    Returns:
        A rich table; rows that may not be compared are in sections of their own.

    Raises:
        StoreError: the named suite was never run in this database.
    """
    index = board(store, suite, with_charts=False).index
    lines = [
        (number, place, row, row.entries[column.name])
        for number, section in enumerate(index.tables)
        for place, column in enumerate(section.benchmarks)
        for row in section.rows
        if column.name in row.entries
    ]
    shown = RichTable(caption=Text(f"{_plain(index.finding)}\n{_LEGEND}"), caption_justify="left", title_justify="left")
    # A name that is the same everywhere stands in the title: terminals are narrow.
    titles, kept = [_plain(index.title)], []
    for i, name in enumerate(_NAMES):
        values = {_names(row, entry)[i] for _, _, row, entry in lines}
        if len(values) == 1 and name != "algorithm":
            titles.append(f"{name} {values.pop()}")
        else:
            kept.append(i)
            shown.add_column(name, overflow="fold")
    shown.title = Text(" · ".join(titles))
    for name in ("accuracy %", "any form", "n", "seeds", "Δ base, pp", "NFE", "TPF", "tok/s", "trained on"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("notes", overflow="fold")
    before = None
    for number, place, row, entry in lines:
        if before not in (None, (number, place)):
            shown.add_section()
        before = (number, place)
        names = _names(row, entry)
        shown.add_row(*(Text(names[i]) for i in kept), *_numbers(row, entry))
    return shown


def _names(row: LeaderRow, entry: Entry) -> list[str]:
    return [_plain(row.model), _plain(row.label), _plain(row.decoder), _plain(entry.benchmark)]


def _numbers(row: LeaderRow, entry: Entry) -> list[Text]:
    cost = entry.cost
    notes = [flag for flag in row.flags if "deterministic" not in flag]
    if entry.accuracy is None or entry.interval is None:
        reason = entry.runs[0].reason
        middle = [Text(entry.state, style="red" if entry.state in ("failed", "incomplete") else "yellow"), *_dashes(3)]
        return [*middle, *_dashes(5), Text(_plain(reason))]
    mark, style = _MARKS[entry.verdict]
    delta = "–" if entry.delta is None else f"{mark} {points(entry.delta)} (p {p_value(entry.p_holm)})"
    fixed = all(run.is_fixed for run in entry.runs)
    return [
        Text(f"{percent(entry.accuracy)} ±{percent(entry.interval.half_width)}", style="bold"),
        Text(percent(entry.value_accuracy)),
        Text(str(entry.n)),
        Text(
            "1 run"
            if fixed
            else f"{entry.n_done}/{len(entry.runs)}"
            if entry.n_done < len(entry.runs)
            else str(entry.n_done)
        ),
        Text("reference" if row.is_base else delta, style=style),
        Text("–" if cost is None else f"{cost.nfe_mean:.1f}"),
        Text("–" if cost is None or cost.tpf is None else f"{cost.tpf:.2f}"),
        Text("–" if cost is None else quantity(cost.tps)),
        Text(_trained(row)),
        Text(_plain(", ".join(notes))),
    ]


def _trained(row: LeaderRow) -> str:
    """Tokens forwarded in training, and tokens sampled for it."""
    cost = row.training
    if cost is None or cost.tokens is None:
        return "–"
    return quantity(cost.tokens) + (f" + {quantity(cost.rollout_tokens)}" if cost.rollout_tokens else "")


def _dashes(count: int) -> list[Text]:
    return [Text("–") for _ in range(count)]


def _plain(text: str) -> str:
    """One line without control characters: a terminal obeys escape sequences hidden in names and errors."""
    return visible(text).replace("\n", " ").replace("\t", " ")
