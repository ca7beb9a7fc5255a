"""Sentences made from the statistics. They claim what the tests establish and nothing more."""

from __future__ import annotations

from collections.abc import Sequence

from dare_bench.leaderboard.formats import counted, p_value, percent, points
from dare_bench.leaderboard.models import Entry, Run, Table


def headline(tables: Sequence[Table]) -> str:
    """One sentence for the top of the leaderboard.

    Args:
        tables: all tables with verdicts.

    Returns:
        How many comparisons with a base model are established, and the largest established gain.
    """
    compared = [
        (row, column.name, row.entries[column.name])
        for table in tables
        for row in table.rows
        for column in table.benchmarks
        if column.name in row.entries and row.entries[column.name].verdict
    ]
    if not compared:
        return (
            "No trained model can be compared with its base model yet: that needs finished runs of both, with the same "
            "decoder and the same questions."
        )
    verdicts = [entry.verdict for _, _, entry in compared]
    better, worse = verdicts.count("better"), verdicts.count("worse")
    where = {(row.model, benchmark) for row, benchmark, _ in compared}
    scope = f" on {compared[0][0].model} and {compared[0][1]}" if len(where) == 1 else ""
    if not better and not worse:
        number = counted(len(compared), "comparison")
        return f"No training is established as better or worse than its base model ({number}{scope})."
    verb = "is" if (better or worse) == 1 else "are"
    counts = f"{better or worse} {verb} established as {'better' if better else 'worse'}"
    counts += f" and {worse} as worse" if better and worse else ""
    text = f"Of {counted(len(compared), 'comparison')} with a base model{scope}, {counts}"
    best = max(
        (c for c in compared if c[2].verdict == ("better" if better else "worse")),
        key=lambda c: (abs(c[2].delta or 0), c[0].label),
    )
    row, benchmark, entry = best
    decoder = "" if row.decoder == "default" else f", {row.decoder} decoder"
    claim = "" if entry.basis == "algorithm" else f"; {counted(entry.n_done, 'seed')}: these checkpoints only"
    return f"{text}; the largest: {row.label} on {row.model}, {benchmark}{decoder}, {points(entry.delta)} pp{claim}."


def run_verdict(run: Run, entry: Entry, required: str = "right in the required form") -> str:
    """The verdict line of a cell page.

    Args:
        run: the run the page shows.
        entry: the entry it belongs to (for its neighbours; only the run's own numbers are stated).
        required: what the strict metric asks for.

    Returns:
        One or two sentences.
    """
    if run.accuracy is None:
        return f"No accuracy: this cell is {run.state} ({run.reason})."
    text = f"{percent(run.accuracy)} % of {run.n} questions {required}"
    if run.value_accuracy is not None and abs(run.value_accuracy - run.accuracy) > 1e-12:
        text += f", {percent(run.value_accuracy)} % right in any form"
    text += "."
    c = run.comparison
    if c is None:
        return f"{text} No comparison: {run.comparison_note}." if run.comparison_note else text
    separated = "established for these two checkpoints" if c.p <= 0.05 else "not established"
    direction = "better" if c.delta > 0 else "worse" if c.delta < 0 else "different"
    return (
        f"{text} {points(c.delta)} pp against the base model on the same questions "
        f"(95 % interval {points(c.lo)} to {points(c.hi)}; {c.gained} gained, {c.lost} lost; exact McNemar p "
        f"{p_value(c.p)}, this one test): {direction} is {separated}."
    )
