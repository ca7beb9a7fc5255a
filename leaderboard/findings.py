"""Sentences made from the statistics. They claim what the tests establish and nothing more."""

from __future__ import annotations

from collections.abc import Sequence

from dare_bench.leaderboard.formats import counted, p_value, percent, points
from dare_bench.leaderboard.models import Entry, Run, Table

#: More (model, benchmark) pairs than this are summed up instead of listed.
_LISTED_PAIRS = 3


def headline(tables: Sequence[Table]) -> str:
    """One sentence for the top of the leaderboard.

    Args:
        tables: all tables with verdicts.

    Returns:
        For example ``On tiny-sdar, 1 of 2 algorithms is established better than the base model on mini_gsm ...``.
    """
    pairs: list[tuple[str, str, list[tuple[str, Entry]]]] = []
    for table in tables:
        for model, rows in table.models:
            for column in table.benchmarks:
                entries = [
                    (
                        row.label if row.decoder == "default" else f"{row.label} ({row.decoder})",
                        row.entries[column.name],
                    )
                    for row in rows
                    if not row.is_base and column.name in row.entries
                ]
                compared = [(label, e) for label, e in entries if e.verdict]
                if compared:
                    pairs.append((model, column.name, compared))
    if not pairs:
        return (
            "No trained model can be compared with its base model yet: a comparison needs finished runs of both, "
            "with the same decoder and the same questions."
        )
    if len(pairs) > _LISTED_PAIRS:
        flat = [entry for _, _, compared in pairs for _, entry in compared]
        better, worse = _count(flat, "better"), _count(flat, "worse")
        return (
            f"Over {len(pairs)} pairs of model and benchmark, {better} of {counted(len(flat), 'comparison')} with the "
            f"base model {'is' if better == 1 else 'are'} established as better, {worse} as worse and "
            f"{len(flat) - better - worse} not established either way (Holm-corrected at 0.05)."
        )
    return " ".join(_pair_sentence(*pair) for pair in pairs)


def _pair_sentence(model: str, benchmark: str, compared: Sequence[tuple[str, Entry]]) -> str:
    entries = [entry for _, entry in compared]
    better, worse = _count(entries, "better"), _count(entries, "worse")
    m = len(entries)
    of = f"{{}} of {counted(m, 'trained row')}"
    if better:
        top = max((c for c in compared if c[1].verdict == "better"), key=lambda c: (c[1].delta or 0, c[0]))
        text = (
            f"On {model}, {of.format(better)} {'is' if better == 1 else 'are'} established as better than the base "
            f"model on {benchmark} ({top[0]}: {points(top[1].delta)} pp)"
        )
        if worse:
            text += f", and {worse} as worse"
    elif worse:
        text = (
            f"On {model}, {of.format(worse)} {'is' if worse == 1 else 'are'} established as worse than the base "
            f"model on {benchmark}"
        )
    else:
        text = (
            f"On {model}, no difference from the base model is established on {benchmark} ({counted(m, 'trained row')})"
        )
    claim = (
        ""
        if all(e.basis == "algorithm" for e in entries)
        else "; fewer than three seeds speak for these checkpoints only"
    )
    return f"{text}{claim}."


def _count(entries: Sequence[Entry], verdict: str) -> int:
    return sum(entry.verdict == verdict for entry in entries)


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
