"""Which rows share a network call: least padding and calls, against trying every partition."""

from __future__ import annotations

import itertools

import pytest
import torch
from dare_bench.dare.decoding.plan import groups
from dare_bench.dare.families.last_layer import only_at
from hypothesis import given
from hypothesis import strategies as st


def cost(widths: list[int], found: list[list[int]], call: float) -> float:
    return sum(max(widths[index] for index in group) * len(group) + call for group in found)


def least(widths: list[int], call: float) -> float:
    """The least cost of all partitions of the sorted widths into runs (a best partition is one of them)."""
    order, spaces = sorted(range(len(widths)), key=lambda index: widths[index]), range(1, len(widths))
    found = []
    for count in range(len(widths)):
        for cuts in itertools.combinations(spaces, count):
            edges = [0, *cuts, len(widths)]
            found.append(cost(widths, [order[a:b] for a, b in itertools.pairwise(edges)], call))
    return min(found)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=7), st.sampled_from([0.5, 3.0, 20.0, 1000.0]))
def test_groups_cost_least(widths: list[int], call: float) -> None:
    found = groups(widths, call)
    assert sorted(index for group in found for index in group) == list(range(len(widths)))
    assert cost(widths, found, call) == pytest.approx(least(widths, call))
    tops = [max(widths[index] for index in group) for group in found]
    assert tops == sorted(set(tops))


def test_few_calls_where_calls_are_dear_and_no_padding_where_they_are_cheap() -> None:
    assert groups([8, 16, 8, 384], 1e6) == [[0, 1, 2, 3]]
    assert groups([8, 16, 8, 384], 1.0) == [[0, 2], [1], [3]]
    assert groups([8, 16, 8, 384], 50.0) == [[0, 1, 2], [3]]
    assert groups([], 1.0) == []


@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "llada_moe", "sdar_moe", "llada2_moe"])
def test_states_at_the_places_that_are_read_are_those_of_the_whole_forward(tiny, family: str) -> None:
    lm = tiny(family)
    ids = torch.randint(5, 60, (3, 16), generator=torch.Generator().manual_seed(0))
    row, column = torch.tensor([0, 0, 2]), torch.tensor([3, 15, 7])
    with torch.inference_mode():
        whole = lm.hidden(ids)
        some = lm.hidden(ids, positions=(row, column))
        nothing = lm.hidden(ids, positions=(row[:0], column[:0]))
        again = lm.hidden(ids)
    torch.testing.assert_close(some, whole[row, column], atol=1e-5, rtol=1e-5)
    assert nothing.shape == (0, whole.shape[-1])
    assert torch.equal(again, whole)


def test_training_and_networks_of_another_shape_are_left_alone(tiny) -> None:
    trunk, row = tiny("llada").model.model, torch.tensor([0])
    with only_at(trunk, row, row) as narrowed:
        assert not narrowed and "forward" not in vars(trunk.layers[-1])
    with torch.no_grad(), only_at(torch.nn.Linear(2, 2), row, row) as narrowed:
        assert not narrowed
    with torch.no_grad(), pytest.raises(RuntimeError, match="stopped"), only_at(trunk, row, row):
        assert "forward" in vars(trunk.layers[-1])
        raise RuntimeError("stopped")
    assert "forward" not in vars(trunk.layers[-1])


def test_a_group_is_split_where_it_feeds_too_much() -> None:
    assert groups([8] * 5, 1e6, most=16) == [[0], [1, 2], [3, 4]]
    assert groups([8, 400], 1.0, most=16) == [[0], [1]]
    assert groups([8] * 4, 1e6, most=32) == [[0, 1, 2, 3]]
