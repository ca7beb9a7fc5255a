"""The numbers of one table entry: accuracy with its interval, difference from the base, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from dare_bench.leaderboard.models import Comparison, Cost, Entry, Run, TrainingCost
from dare_bench.leaderboard.runs import RunSource, device_tag
from dare_bench.leaderboard.stats.accuracy import Interval, mean_interval, wilson
from dare_bench.leaderboard.stats.efficiency import tokens_per_forward, tokens_per_second
from dare_bench.leaderboard.stats.multiplicity import holm
from dare_bench.leaderboard.stats.paired import bonett_price, paired_counts
from dare_bench.leaderboard.stats.seeds import MIN_SEEDS, crossed, crossed_difference

#: Level of every "better" and "worse" on the site, after correction.
ALPHA = 0.05

Outcomes = Mapping[str, Mapping[str, float]]


def make_entry(benchmark: str, sources: Sequence[RunSource], base: Sequence[RunSource], outcomes: Outcomes) -> Entry:
    """Compute an entry from its runs.

    Args:
        benchmark: name.
        sources: runs of this row on the benchmark, at least one.
        base: runs of the base model with the same decoder and comparability key; empty for the base itself.
        outcomes: scoring fingerprint -> question id -> score, for every finished run given.

    Returns:
        The entry; `p_holm` and `verdict` are set later, when the whole family is known.
    """
    runs = tuple(_compared(source, base, outcomes) for source in sources)
    done = [s for s in sources if s.run.accuracy is not None]
    if not done:
        return Entry(benchmark, runs, note=runs[0].reason)
    accuracies = [s.run.accuracy for s in done if s.run.accuracy is not None]
    values = [s.run.value_accuracy for s in done if s.run.value_accuracy is not None]
    table = _score_table(done, outcomes)
    interval, covers = _interval(table, done, float(np.mean(accuracies)), len(_scores(done[0], outcomes)))
    entry = Entry(
        benchmark,
        runs,
        accuracy=float(np.mean(accuracies)),
        value_accuracy=float(np.mean(values)) if len(values) == len(done) else None,
        interval=interval,
        covers=covers,
        n=len(_scores(done[0], outcomes)),
        n_done=len(done),
        cost=_cost(done),
    )
    return _with_difference(entry, done, [s for s in base if s.run.accuracy is not None], outcomes, table)


def with_verdicts(entries: Sequence[Entry]) -> list[Entry]:
    """Correct a family of comparisons with the base and say which are established.

    Args:
        entries: all entries of one benchmark in one table.

    Returns:
        The entries in the same order with `p_holm` and `verdict`.
    """
    tested = [e.p for e in entries if e.p is not None]
    adjusted = iter(holm(tested))
    result = []
    for entry in entries:
        if entry.p is None or entry.delta is None:
            result.append(entry)
            continue
        p_holm = next(adjusted)
        verdict = "undecided" if p_holm > ALPHA else ("better" if entry.delta > 0 else "worse")
        result.append(replace(entry, p_holm=p_holm, verdict=verdict))
    return result


def training_cost(sources: Sequence[RunSource]) -> TrainingCost | None:
    """Mean cost of the distinct finished training runs of a row; None for an untrained model."""
    distinct = {s.cell.training.fingerprint: s.cell.training for s in sources if s.cell.training is not None}
    finished = [t for t in distinct.values() if t.status == "done"]
    if not finished:
        return None

    def mean(values: list[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return float(np.mean(known)) if len(known) == len(values) else None

    def total(row: Any, name: str) -> float | None:
        value = (row.totals or {}).get(name)
        return float(value) if isinstance(value, int | float) else None

    # Counted as training goes, times the processes; a continued run holds what its earlier attempts counted.
    counted = [total(t, "device_wall_s") for t in finished]
    seconds = [held if held is not None else t.wall_s for held, t in zip(counted, finished, strict=True)]
    return TrainingCost(
        tokens=mean([total(t, "train_tokens") for t in finished]),
        rollout_tokens=mean([total(t, "rollout_tokens") for t in finished]),
        device_hours=mean([None if each is None else each / 3600 for each in seconds]),
        runs=len(finished),
    )


def row_flags(entries: Mapping[str, Entry], *, n_seeds: int) -> tuple[str, ...]:
    """What a reader must know about a row, in words.

    Args:
        entries: benchmark -> entry of one row.
        n_seeds: seeds the grid asks for.

    Returns:
        Flags in a fixed order.
    """
    flags = []
    done = [e for e in entries.values() if e.n_done]
    fixed = [e for e in done if all(r.is_fixed for r in e.runs)]
    if done and len(fixed) == len(done):
        flags.append(f"one deterministic run, shared by {n_seeds} seeds" if n_seeds > 1 else "one deterministic run")
    elif any(e.n_done < MIN_SEEDS for e in done):
        flags.append("seed variance unknown")
    for state in ("failed", "incomplete", "running", "not run"):
        count = sum(run.state == state for e in entries.values() for run in e.runs)
        if count:
            flags.append(
                f"{count} {'run' if count == 1 else 'runs'} {state}" if state != "not run" else f"{count} not run"
            )
    devices = {e.cost.device for e in done if e.cost}
    if any(" | " in device for device in devices):
        flags.append("seeds ran on different devices")
    return tuple(flags)


def _compared(source: RunSource, base: Sequence[RunSource], outcomes: Outcomes) -> Run:
    """The run with its comparison against the base run of the same seed (or the base's only run)."""
    run = source.run
    if run.accuracy is not None:
        run = replace(run, n=len(_scores(source, outcomes)))
    if not base or run.accuracy is None:
        return run
    partner = next((b for b in base if set(b.run.seeds) & set(run.seeds)), base[0] if len(base) == 1 else None)
    if partner is None or partner.run.accuracy is None:
        return replace(run, comparison_note="the base model has no finished run for this seed")
    try:
        counts = paired_counts(_scores(source, outcomes), _scores(partner, outcomes))
    except ValueError as error:
        return replace(run, comparison_note=str(error))
    lo, hi = bonett_price(counts.only_a, counts.only_b, counts.n)
    return replace(run, comparison=Comparison(counts.delta, lo, hi, counts.only_a, counts.only_b, counts.p_value))


def _with_difference(
    entry: Entry, done: Sequence[RunSource], base: Sequence[RunSource], outcomes: Outcomes, table: np.ndarray | None
) -> Entry:
    """Add the difference from the base: about algorithms with three seeds or more, else about these checkpoints."""
    compared = [r.comparison for r in entry.runs if r.comparison is not None]
    if not compared:
        note = next((r.comparison_note for r in entry.runs if r.comparison_note), "")
        return replace(entry, note=note)
    base_table = _score_table(base, outcomes)
    has_seed_variance = len(done) >= MIN_SEEDS and (all(b.run.is_fixed for b in base) or len(base) >= MIN_SEEDS)
    if has_seed_variance and table is not None and base_table is not None and table.shape[1] == base_table.shape[1]:
        difference = crossed_difference(table, base_table)
        lo, hi = difference.interval()
        return replace(entry, delta=difference.delta, delta_lo=lo, delta_hi=hi, p=difference.p_value, basis="algorithm")
    # Every seed has to show it: the largest p is a valid test of "all of them differ"; opposite signs show nothing.
    delta = float(np.mean([c.delta for c in compared]))
    agrees = all(c.delta * delta > 0 for c in compared)
    single = compared[0] if len(compared) == 1 else None
    return replace(
        entry,
        delta=delta,
        delta_lo=single.lo if single else None,
        delta_hi=single.hi if single else None,
        p=max(c.p for c in compared) if agrees else 1.0,
        basis="checkpoints",
    )


def _interval(table: np.ndarray | None, done: Sequence[RunSource], rate: float, n: int) -> tuple[Interval, str]:
    if table is None or table.shape[1] < 2:
        return wilson(rate, n), "questions only"
    if len(done) >= MIN_SEEDS:
        seeds = "seeds" if done[0].cell.training is not None else "sampling seeds"
        return crossed(table).interval(), f"questions + {seeds}"
    if np.isin(table, (0.0, 1.0)).all():
        return wilson(rate, n), "questions only"
    return mean_interval(table.mean(axis=0)), "questions only"


def _score_table(done: Sequence[RunSource], outcomes: Outcomes) -> np.ndarray | None:
    """[S, n] scores in one order of questions; None when runs answered different questions."""
    if not done:
        return None
    tables = [_scores(s, outcomes) for s in done]
    ids = sorted(tables[0])
    if any(t.keys() != tables[0].keys() for t in tables):
        return None
    return np.array([[t[i] for i in ids] for t in tables], dtype=float)


def _scores(source: RunSource, outcomes: Outcomes) -> Mapping[str, float]:
    return outcomes.get(source.cell.scoring_fingerprint, {})


def _cost(done: Sequence[RunSource]) -> Cost | None:
    evaluations = [s.cell.evaluation for s in done if s.cell.evaluation is not None]
    n, nfe, tokens = (sum(getattr(e.costs, name) for e in evaluations) for name in ("n", "nfe", "tokens_text"))
    if n == 0:
        return None
    walls = [e.decode_wall_s for e in evaluations if e.decode_wall_s is not None]
    wall = sum(walls) if len(walls) == len(evaluations) else None
    devices = sorted({device_tag(e) for e in evaluations})
    return Cost(nfe / n, tokens_per_forward(tokens, nfe), tokens_per_second(tokens, wall), " | ".join(devices))
