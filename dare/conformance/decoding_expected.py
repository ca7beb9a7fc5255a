"""What a recorded run says this installation must give, derived from its forwards and step map. Imports no torch.

Two expectations exist. Published: everything as recorded. Rule: the recorded forwards without the wasted ones, steps
numbered accordingly; where the published code departs from its own rule, as far as the record goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dare_bench.dare.conformance.decoding_cases import Case
from dare_bench.dare.decoding.generation import FILLED, NEVER


@dataclass(frozen=True)
class Expected:
    """What a row of a replay must give.

    Attributes:
        ids, steps: per generated position; steps are those of the first commit.
        nfe: network calls; null = not compared.
        probs: probabilities at the commit; null where not recorded.
        edits: ``(forward, position, old, new)``.
        until: only positions committed before this forward are compared; null = all.
        cut: the recorded text ends before the last block does.
    """

    ids: Sequence[int]
    steps: Sequence[int]
    nfe: int | None
    probs: Sequence[float | None] | None = None
    edits: Sequence[tuple[int, ...]] = ()
    until: int | None = None
    cut: bool = False


def published(case: Case) -> list[Expected]:
    """As recorded, one per row."""
    return [_expected(case, row, frozenset()) for row in range(len(case.prompts))]


def without_waste(case: Case, until: int | None = None) -> list[Expected]:
    """As the rule gives it, one per row.

    Args:
        case: recorded run.
        until: forward at which the published code departed from its rule; what came before is compared.
    """
    return [_expected(case, row, wasted(case, row), until) for row in range(len(case.prompts))]


def wasted(case: Case, row: int) -> frozenset[int]:
    """Forwards that no token of a row came from and that no rule asks for.

    A forward is wasted if it only stores keys and values, or if every position of the block that it works on had been
    committed before it. A forward works on the block of the last commit before it. Samplers that edit go on with
    finished blocks by their own rule.
    """
    steps = case.first_commits[row]
    calls = range(case.data["nfe"])
    stores = frozenset(call for call in calls if case.data["forwards"][call][0] == "store")
    if case.rewrites:
        return stores
    commits = {step for step in steps if step >= 0}
    idle = [call for call in calls if call not in commits and call not in stores]
    return stores | {call for call in idle if _finished(case, row, call)}


def _finished(case: Case, row: int, call: int) -> bool:
    """Whether the block that was worked on before a call held no mask at the call."""
    steps = case.first_commits[row]
    before = [step for step in steps if 0 <= step < call]
    if not before:
        return False
    place = max(index for index, step in enumerate(steps) if step == max(before))
    block = next(block for block in case.blocks(row) if place in block)
    # What lies behind the end of a recorded text is unknown, and so is when a filled position was committed.
    return all(index < len(steps) and 0 <= steps[index] < call for index in block)


def departure(case: Case) -> int | None:
    """The first forward at which the record shows the published code departing from its rule, or null.

    Recorded departures: a failing last candidate that the factor rule committed, committed tokens overwritten by a
    count that was not capped.
    """
    seen = [*(case.data.get("factor_quirk_steps") or []), *(step for step, *_ in case.data.get("overwrites") or [])]
    return min(seen, default=None)


def twin(case: Case, cases: Sequence[Case]) -> Case | None:
    """A case that records the rule itself for the same run: all is the same but ``settings.rule``."""

    def run(one: Case) -> tuple[object, ...]:
        settings = {name: value for name, value in one.settings.items() if name != "rule"}
        return one.network, one.prompts, one.sampler, settings

    found = (other for other in cases if "rule" in other.settings and run(other) == run(case))
    return None if "rule" in case.settings else next(found, None)


def leaves_masks(case: Case) -> bool:
    """Whether a sampler that fills its canvas left masks: the mask id was chosen and "committed"."""
    stops = case.settings.get("stop_ids") or case.settings.get("early_stop") or case.settings.get("eos_early_stop")
    return not stops and any(case.data["mask_id"] in row for row in case.data["output_ids"])


def last_writes(first: Sequence[int], edits: Sequence[Sequence[int]]) -> list[int]:
    """The forward that wrote each position last, from first commits and edits."""
    found = list(first)
    for call, position, *_ in sorted(map(tuple, edits)):
        if position < len(found):
            found[position] = max(found[position], call)
    return found


def _first_written(case: Case, row: int) -> list[int]:
    """The ids before any overwriting."""
    found = list(case.data["output_ids"][row])
    for _, place, old, _ in reversed(case.edits(row)):
        found[place] = old
    return found


def _expected(case: Case, row: int, dropped: frozenset[int], until: int | None = None) -> Expected:
    data = case.data
    number, kept = {NEVER: NEVER, FILLED: FILLED}, 0
    for call in range(data["nfe"]):
        number[call] = kept
        kept += call not in dropped
    probs = data.get("commit_prob") if until is None else None
    edits = case.edits(row)
    # Of an overwritten token the record holds the probability in the forward that committed another one there.
    over = {place for _, place, *_ in edits} if data.get("overwrites") else set()
    width = data["total_length"] - len(case.prompts[row]) if case.by_grid else data["gen_length"]
    return Expected(
        ids=data["output_ids"][row] if until is None else _first_written(case, row),
        steps=[number[step] for step in case.first_commits[row]],
        nfe=kept if until is None else None,
        probs=None if probs is None else [None if place in over else prob for place, prob in enumerate(probs[row])],
        edits=[(number[call], *rest) for call, *rest in edits],
        until=None if until is None else number[until],
        cut=len(data["output_ids"][row]) < width,
    )
