"""Trajectories are rebuilt as they happened: random histories, and what the engine's forwards really saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.decoding.feed import Feeder
from dare_bench.dare.decoding.generation import FILLED, NEVER, Generation
from dare_bench.dare.decoding.trajectory import check_replayable, committed_at, state_at, states
from hypothesis import given, settings
from hypothesis import strategies as st

MASK = 63


@dataclasses.dataclass
class History:
    """A generation as it happened."""

    inputs: list[list[int]]
    token_ids: list[int]
    step_map: list[int]
    edits: list[tuple[int, int, int, int]]


@st.composite
def histories(draw: st.DrawFn) -> History:
    width = draw(st.integers(1, 8))
    now, when, edits, inputs = [MASK] * width, [NEVER] * width, [], []
    for step in range(draw(st.integers(1, 7))):
        inputs.append(list(now))
        for place in draw(st.sets(st.integers(0, width - 1))):
            token = draw(st.integers(0, 5))
            if now[place] == MASK:
                when[place] = step
            elif token != now[place]:
                edits.append((step, place, now[place], token))
            else:
                continue
            now[place] = token
    return History(inputs, now, when, draw(st.permutations(edits)))


@settings(deadline=None)
@given(histories())
def test_every_input_is_rebuilt(history):
    found = list(states(history.token_ids, history.step_map, MASK, history.edits))
    last = len(found) - 1  # later forwards changed nothing
    assert found[:last] == history.inputs[:last]
    assert all(seen == history.token_ids for seen in history.inputs[last:])
    assert found[-1] == history.token_ids


@settings(deadline=None)
@given(histories())
def test_commits_are_a_partition(history):
    places = [place for step in range(9) for place in committed_at(history.step_map, step)]
    assert sorted(places) == [place for place, when in enumerate(history.step_map) if when != NEVER]
    assert len(places) == len(set(places))


def test_filled_positions_are_masks_until_the_end_token_is_committed():
    token_ids, step_map = [5, 62, 62, 62], [2, 1, FILLED, FILLED]
    assert state_at(token_ids, step_map, 1, MASK) == [MASK] * 4
    assert state_at(token_ids, step_map, 2, MASK) == [MASK, 62, 62, 62]
    assert list(states(token_ids, step_map, MASK))[-1] == token_ids


@pytest.fixture
def watched(monkeypatch) -> Callable[..., tuple[Generation, list[list[int]]]]:
    """Decode one prompt; what was behind it at every forward."""

    def run(lm: object, decoder: DecoderConfig) -> tuple[Generation, list[list[int]]]:
        seen: list[list[int]] = []
        forward = Feeder.__call__

        def look(self: Feeder, *arguments: object) -> object:
            slots = self.slots
            seen.append(slots.ids[0, int(slots.prompt[0]) : int(slots.canvas[0])].tolist())
            return forward(self, *arguments)

        monkeypatch.setattr(Feeder, "__call__", look)
        (found,) = generate(lm, [[3, 1, 4, 1, 5]], decoder, [0])
        return found, seen

    return run


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llada", {}),
        ("llada", {"cache": "dual", "selector": "threshold", "selector_options": {"threshold": 0.3}}),
        ("dream", {"scheduler": "timesteps", "block_length": 12, "steps_per_block": 6}),
        ("sdar", {"selector": "threshold", "selector_options": {"threshold": 0.3}}),
        ("llada2_moe", {"editor": "token_editing", "editor_options": {"threshold": 0.2, "max_post_steps": 4}}),
        ("sdar", {"editor": "token_editing", "editor_options": {"threshold": 0.0, "max_post_steps": 2}}),
    ],
)
def test_inputs_of_the_engine_are_rebuilt(watched, tiny, family, fields):
    found, seen = watched(tiny(family), DecoderConfig(gen_length=12, early_stop=False, **fields))
    assert len(seen) == found.cost.nfe
    width = len(found.token_ids)
    for step, tokens in enumerate(seen):
        assert state_at(found.token_ids, found.step_map, step, MASK, found.edits) == tokens[:width]
    if "editor" in fields:
        assert found.edits


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"editor": "token_editing"}, "editor: 'token_editing'; allowed.*none"),
        ({"early_stop": "fill"}, "early_stop: 'fill'; allowed.*block, now"),
        ({"compat": {"overwrite": {}}}, "compat: {'overwrite': {}}; allowed.*all but overwrite"),
    ],
)
def test_decoders_that_a_step_map_does_not_replay(fields, said):
    check_replayable(DecoderConfig(early_stop="now", cache="dual"))
    with pytest.raises(ValueError, match=said):
        check_replayable(DecoderConfig(**fields))
