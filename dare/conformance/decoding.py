"""Published samplers against recorded runs: the same ids, steps and network calls, through `dispatch.generate`.

A case is replayed by the rule, alone and inside a batch of other prompts, and with the published quirks where these
differ from the rule.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dare_bench.dare.conformance import decoding_expected as expect
from dare_bench.dare.conformance.decoding_cases import Case, read_cases
from dare_bench.dare.conformance.decoding_expected import Expected
from dare_bench.dare.conformance.decoding_outcome import Replay
from dare_bench.dare.conformance.decoding_samplers import Mapped, map_case
from dare_bench.dare.decoding import dispatch
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.generation import FILLED, NEVER, Generation
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.facts import Overrides
from dare_bench.dare.families.loading import load

#: Largest difference of a probability at its commit.
TOLERANCE = 1e-4
#: Prompts of other cases that a case is decoded beside.
NEIGHBOURS = 4


class Conformance:
    """Replays cases; networks are loaded once.

    Args:
        cases: of `read_cases`.
        device: torch device.
    """

    def __init__(self, cases: Sequence[Case], device: str) -> None:
        self.cases, self.device = list(cases), device
        self._networks: dict[tuple[Path, int, int], DiffusionLM] = {}

    def replay(self, case: Case, **changed: Any) -> list[Replay]:
        """Every replay of a case.

        Args:
            case: one of the cases.
            changed: fields of the rule's decoder that must not change its results, for example ``cache="none"``.

        Raises:
            BadReference: for an unknown sampler.
            BadCheckpoint, UnknownName, UnsupportedConfig: as `loading.load`.
        """
        mapped = map_case(case)
        mapped = replace(mapped, rule=replace(mapped.rule, **changed))
        lm = self._network(case, mapped.stops)
        found = [self._rule(case, mapped, lm)]
        if mapped.compat and not changed:
            name = f"published ({', '.join(sorted(mapped.compat))})"
            try:
                rows = _decode(lm, case.prompts, mapped.published, case.data.get("rng_seed") or 0)
                found.append(_judge(case, name, rows, expect.published(case)))
            except (ValueError, LookupError, RuntimeError) as error:
                found.append(_stopped(case, name, error))
        return found

    def _rule(self, case: Case, mapped: Mapped, lm: DiffusionLM) -> Replay:
        """By the rule, alone; then beside other prompts, where every row must come out the same."""
        expected, remark = self._expected(case, mapped)
        try:
            rows = _decode(lm, case.prompts, mapped.rule)
            judged = _judge(case, "rule", rows, expected, remark)
            alone = [_decode(lm, [prompt], mapped.rule)[0] for prompt in case.prompts]
            mixed = _decode(lm, [*case.prompts, *self._others(case)], mapped.rule)
        except (ValueError, LookupError, RuntimeError) as error:
            return _stopped(case, "rule", error)
        return judged if judged.difference else _with(judged, _same_in_batch([rows, mixed], alone))

    def _expected(self, case: Case, mapped: Mapped) -> tuple[list[Expected] | None, str]:
        """What the rule must give, and a remark where that is not the whole record."""
        twin = expect.twin(case, self.cases)
        if twin is not None:
            return expect.without_waste(twin), f"as recorded in {twin.name}"
        departed = expect.departure(case)
        if departed is not None:
            return expect.without_waste(case, departed), f"recorded by the rule up to forward {departed} only"
        if mapped.unrecorded:
            return None, f"alone and in a batch only: {mapped.unrecorded}"
        return expect.without_waste(case), ""

    def _others(self, case: Case) -> list[list[int]]:
        """Prompts of other cases of the same network, of different lengths where there are such, and a short one."""
        prompts = [prompt for other in self.cases if other.network == case.network for prompt in other.prompts]
        different = {len(prompt): prompt for prompt in prompts if prompt not in case.prompts}
        return [*list(different.values())[:NEIGHBOURS], case.prompts[0][:3]]

    def _network(self, case: Case, stops: frozenset[int]) -> DiffusionLM:
        key = (case.network, case.data["mask_id"], case.data["eos_id"])
        if key not in self._networks:
            # Some released configurations do not name these two; the record does.
            facts = Overrides(mask_token_id=key[1], eos_token_id=key[2])
            self._networks[key] = load(case.network, device=self.device, overrides=facts)
        lm = copy.copy(self._networks[key])  # a view of its own: the weights are shared
        lm.stop_token_ids = set(stops)
        return lm


def compare(root: Path, *, device: str) -> list[Replay]:
    """Replay every case of a folder.

    Args:
        root: of `read_cases`.
        device: torch device.

    Raises:
        BadReference: no such folder, a damaged case, an unknown sampler.
        BadCheckpoint, UnknownName, UnsupportedConfig: as `loading.load`.
    """
    cases = read_cases(root)
    runner = Conformance(cases, device)
    return [replay for case in cases for replay in runner.replay(case)]


def _decode(lm: DiffusionLM, prompts: list[list[int]], decoder: DecoderConfig, seed: int = 0) -> list[Generation]:
    """One batch of all prompts."""
    return dispatch.generate(lm, prompts, decoder, [seed] * len(prompts), batch_size=len(prompts))


def _stopped(case: Case, name: str, error: Exception) -> Replay:
    said = " ".join(str(error).split())
    return Replay(case.name, name, difference=f"not decoded: {type(error).__name__}: {said}")


def _with(replay: Replay, difference: str | None) -> Replay:
    return replace(replay, difference=replay.difference or difference)


def _judge(
    case: Case, name: str, rows: Sequence[Generation], expected: Sequence[Expected] | None, remark: str = ""
) -> Replay:
    """Compare the rows of one replay with what they must give."""
    calls = max(row.cost.nfe for row in rows)
    if expected is None:
        return Replay(case.name, name, nfe_shown=str(calls), remark=remark)
    verdicts = [_row(found, wanted) for found, wanted in zip(rows, expected, strict=True)]
    differences = [
        f"row {row}: {said}" if len(rows) > 1 else said for row, (_, _, _, said) in enumerate(verdicts) if said
    ]
    nfe = None if expected[0].nfe is None else all(verdict[2] for verdict in verdicts)
    recorded = case.data["nfe"]
    return Replay(
        case.name,
        name,
        ids=all(verdict[0] for verdict in verdicts),
        steps=all(verdict[1] for verdict in verdicts),
        nfe=nfe,
        nfe_shown=str(calls) if calls == recorded else f"{calls} of {recorded}",
        difference=differences[0] if differences else None,
        remark=remark,
    )


def _row(found: Generation, wanted: Expected) -> tuple[bool, bool, bool, str | None]:
    """Ids, steps, calls equal, and the first difference."""
    ids = [*_ids(found, wanted), *_ends(found, wanted)]
    steps = list(_steps(found, wanted))
    calls = [] if wanted.nfe in (None, found.cost.nfe) else [f"{found.cost.nfe} forwards instead of {wanted.nfe}"]
    more = [] if ids or steps else [*_probabilities(found, wanted), *_edits(found, wanted)]
    return not ids, not steps, not calls, next(iter([*ids, *steps, *calls, *more]), None)


def _places(found: Generation, wanted: Expected) -> list[int]:
    """Positions to compare: those the network chose, up to where the record is one of the rule."""
    both = range(min(len(found.token_ids), len(wanted.ids)))
    chosen = [place for place in both if wanted.steps[place] != FILLED]
    return chosen if wanted.until is None else [i for i in chosen if 0 <= wanted.steps[i] < wanted.until]


def _ids(found: Generation, wanted: Expected) -> list[str]:
    return [
        f"position {place}: token {found.token_ids[place]} instead of {wanted.ids[place]}"
        for place in _places(found, wanted)
        if found.token_ids[place] != wanted.ids[place]
    ]


def _ends(found: Generation, wanted: Expected) -> list[str]:
    """Decoding may stop early where the record holds nothing more, and go on where the record is cut to its text."""
    have, want = len(found.token_ids), len(wanted.ids)
    if have > want and not wanted.cut:
        return [f"{have} tokens instead of {want}"]
    missing = [place for place in range(have, want) if wanted.steps[place] not in (NEVER, FILLED)]
    return [f"position {missing[0]} is missing: {have} tokens instead of {want}"] if missing else []


def _steps(found: Generation, wanted: Expected) -> list[str]:
    return [
        f"position {place}: committed by forward {found.step_map[place]} instead of {wanted.steps[place]}"
        for place in _places(found, wanted)
        if found.step_map[place] != wanted.steps[place]
    ]


def _probabilities(found: Generation, wanted: Expected) -> list[str]:
    given = wanted.probs or []
    return [
        f"position {place}: probability {found.confidence[place]:.6f} instead of {given[place]:.6f}"
        for place in _places(found, wanted)
        if given and given[place] is not None and not abs(found.confidence[place] - given[place]) <= TOLERANCE
    ]


def _edits(found: Generation, wanted: Expected) -> list[str]:
    """Rewrites of the recorded text."""
    if wanted.until is not None:
        return []
    here = sorted(tuple(edit) for edit in found.edits if edit[1] < len(wanted.ids))
    there = sorted(tuple(edit) for edit in wanted.edits if edit[1] < len(wanted.ids))
    if here == there:
        return []
    other = sorted({*here} ^ {*there})[0] if {*here} != {*there} else there[0]
    where = "only here" if other in here else "only recorded"
    return [f"edit {list(other)} (forward, position, old, new) {where}; {len(here)} edits instead of {len(there)}"]


def _same_in_batch(batches: Sequence[Sequence[Generation]], alone: Sequence[Generation]) -> str | None:
    """The first difference between rows decoded in batches and alone."""
    fields = ("token_ids", "step_map", "edits", "kinds", "finish_reason")
    for rows in batches:
        for index, (found, one) in enumerate(zip(rows, alone, strict=False)):
            for field in fields:
                if getattr(found, field) != getattr(one, field):
                    return f"row {index} of a batch of {len(rows)} differs from the prompt alone: {field}"
            if found.cost.nfe != one.cost.nfe:
                return f"row {index} of a batch of {len(rows)}: {found.cost.nfe} forwards, alone {one.cost.nfe}"
    return None
