"""Trajectories as tensors: ranks, merges and weights against loops over lists, rows against rebuilt states."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.algorithms import step_weights, trajectories
from dare_bench.dare.algorithms.base import Trace
from dare_bench.dare.decoding.trajectory import states
from dare_bench.dare.diffusion.block import concatenate
from hypothesis import given, settings
from hypothesis import strategies as st

MASK = 63


def steps_of(width: int = 8, rows: int = 3):
    row = st.lists(st.integers(-1, 6), min_size=width, max_size=width)
    return st.lists(row, min_size=rows, max_size=rows).map(torch.tensor)


def ranks_of(row: list[int], segments: list[int], size: int) -> list[int]:
    """The definition, with lists."""
    found = []
    for place, step in enumerate(row):
        own = sorted(
            {other for other, segment in zip(row, segments, strict=True) if other >= 0 and segment == segments[place]}
        )
        found.append(-1 if step < 0 else own.index(step) // size if size else 0)
    return found


@settings(deadline=None, max_examples=60)
@given(steps_of(), st.lists(st.integers(0, 2), min_size=8, max_size=8), st.integers(0, 3))
def test_ranks_are_those_of_the_definition(steps, segments, size):
    found = trajectories.step_ranks(steps, torch.tensor(segments).expand(steps.shape), size)
    assert found.tolist() == [ranks_of(row, segments, size) for row in steps.tolist()]
    whole = trajectories.step_ranks(steps, size=size)
    assert whole.tolist() == [ranks_of(row, [0] * 8, size) for row in steps.tolist()]


@settings(deadline=None, max_examples=60)
@given(steps_of(), st.integers(0, 3))
def test_merged_steps_keep_the_order_and_span_no_segment(steps, size):
    segments = (torch.arange(8) // 3).expand(steps.shape)
    found = trajectories.merged_steps(steps, segments, size)
    assert torch.equal(found < 0, steps < 0)
    for row, old in zip(found.tolist(), steps.tolist(), strict=True):
        used = sorted({step for step in row if step >= 0})
        assert used == list(range(len(used)))
        first = 0
        for segment in range(3):
            places = [place for place in range(8) if place // 3 == segment and old[place] >= 0]
            own = {old[place] for place in places}
            count = -(-len(own) // size) if size else min(len(own), 1)
            assert {row[place] for place in places} == set(range(first, first + count))
            first += count
            for one in places:
                assert all(row[one] <= row[other] for other in places if old[one] <= old[other])


def test_merging_by_example():
    steps, one, two = torch.tensor([[0, 2, 2, 5, 6, 8, -1, 7]]), torch.zeros(1, 8).long(), torch.arange(8)[None] // 4
    assert trajectories.merged_steps(steps, one, 1).tolist() == [[0, 1, 1, 2, 3, 5, -1, 4]]
    assert trajectories.merged_steps(steps, one, 2).tolist() == [[0, 0, 0, 1, 1, 2, -1, 2]]
    assert trajectories.merged_steps(steps, two, 0).tolist() == [[0, 0, 0, 0, 1, 1, -1, 1]]
    assert trajectories.merged_steps(steps, two, 2).tolist() == [[0, 0, 0, 1, 2, 3, -1, 2]]
    assert trajectories.step_ranks(steps, two, 2).tolist() == [[0, 0, 0, 1, 0, 1, -1, 0]]
    nothing = torch.full((2, 3), -1)
    assert torch.equal(trajectories.step_ranks(nothing), nothing)
    assert torch.equal(trajectories.merged_steps(nothing, nothing * 0, 0), nothing)


@settings(deadline=None, max_examples=60)
@given(steps_of(), st.lists(st.booleans(), min_size=24, max_size=24))
def test_weights_are_balanced(steps, kept):
    counted = torch.tensor(kept).view(3, 8) & (steps >= 0)
    weight = step_weights.balanced_weights(steps, counted)
    groups = {int(step) for step in steps[counted]}
    for step in groups:
        own = counted & (steps == step)
        torch.testing.assert_close(
            weight[own], torch.full((int(own.sum()),), 1 / (len(groups) * int(own.sum()))).double()
        )
    assert not weight[~counted].any()
    assert float(weight.sum()) == pytest.approx(float(bool(groups)))
    blocks = (torch.arange(8) // 4).expand(3, 8)
    local = trajectories.step_ranks(steps, blocks)
    weight = step_weights.transition_weights(local, blocks, counted)
    responses = int(counted.any(1).sum())
    for row in range(3):
        transitions = {(int(blocks[row, place]), int(local[row, place])) for place in counted[row].nonzero()[:, 0]}
        assert float(weight[row].sum()) == pytest.approx(1 / responses if transitions else 0.0)
        for block, step in transitions:
            own = counted[row] & (blocks[row] == block) & (local[row] == step)
            assert weight[row][own].tolist() == pytest.approx(
                [1 / (responses * len(transitions) * int(own.sum()))] * int(own.sum())
            )


@settings(deadline=None, max_examples=30)
@given(steps_of(), steps_of())
def test_one_block_weighs_as_the_trajectory_of_each_response(steps, others):
    """Block-parallel weights with one block are those of the trajectory form, averaged over responses."""
    blocks = torch.zeros_like(steps)
    local, counted = trajectories.step_ranks(steps, blocks), steps >= 0
    whole = step_weights.transition_weights(local, blocks, counted)
    responses = int(counted.any(1).sum())
    for row in range(3):
        alone = step_weights.balanced_weights(local[row : row + 1], counted[row : row + 1])
        torch.testing.assert_close(whole[row : row + 1] * responses, alone)


def traced(make_batch, block_length=0, seed=0):
    """Three responses with random step maps; some tokens were never committed."""
    batch = make_batch([3, 5, 6], [9, 7, 6], block_length=block_length)
    drawn = torch.randint(-1, 5, batch.ids.shape, generator=torch.Generator().manual_seed(seed))
    batch.trace = Trace(torch.where(batch.response, drawn, -1))
    return batch


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_the_states_of_the_decoder(make_batch, seed):
    batch = traced(make_batch, seed=seed)
    steps = trajectories.step_ranks(batch.trace.step_map)
    targets = batch.response & (steps >= 0)
    rows = concatenate(list(trajectories.step_rows(batch, steps, targets, targets.double(), rows_per_part=2)))
    assert len(rows) == sum(len({step for step in row if step >= 0}) for row in steps.tolist())
    for index in range(len(rows)):
        owner, step = int(rows.owner[index]), int(rows.draw[index])
        begin, end = int(batch.prompt_lengths[owner]), int(batch.lengths[owner])
        held, when = batch.ids[owner, begin:end].tolist(), steps[owner, begin:end].tolist()
        assert rows.ids[index, begin:end].tolist() == list(states(held, when, MASK))[step]
        assert torch.equal(rows.ids[index, :begin], batch.ids[owner, :begin])
        assert torch.equal(rows.mask[index], targets[owner] & (steps[owner] == step))


def test_block_rows_hold_every_block_before_its_own_step(make_batch):
    batch = traced(make_batch, block_length=4)
    blocks = trajectories.decoding_blocks(batch)
    steps = trajectories.step_ranks(batch.trace.step_map, blocks)
    targets = batch.response & (steps >= 0)
    rows = concatenate(list(trajectories.step_rows(batch, steps, targets, targets.double())))
    assert rows.layout == "noisy_clean"
    assert len(rows) == sum(max(row) + 1 for row in steps.tolist())
    for index in range(len(rows)):
        owner, step = int(rows.owner[index]), int(rows.draw[index])
        assert torch.equal(rows.context[index], batch.ids[owner])
        for column, place in enumerate(rows.position_ids[index].tolist()):
            if not rows.real[index, column]:
                continue
            known = place < batch.prompt_lengths[owner] or 0 <= steps[owner, place] < step
            assert rows.ids[index, column] == (batch.ids[owner, place] if known else MASK)
            assert rows.mask[index, column] == bool(targets[owner, place] and steps[owner, place] == step)


@pytest.mark.parametrize("block_length", [0, 4])
@pytest.mark.parametrize("size", [1, 3, 256])
def test_parts_do_not_matter(make_batch, block_length, size):
    batch = traced(make_batch, block_length)
    steps = trajectories.step_ranks(batch.trace.step_map, trajectories.decoding_blocks(batch))
    targets = batch.response & (steps >= 0)
    weight = step_weights.balanced_weights(steps, targets)
    whole = concatenate(list(trajectories.step_rows(batch, steps, targets, weight, rows_per_part=10**6)))
    parts = list(trajectories.step_rows(batch, steps, targets, weight, rows_per_part=size, temperature=0.5))
    assert all(len(part) <= size and part.temperature == 0.5 for part in parts)
    joined = concatenate(parts)
    assert torch.equal(joined.real, whole.real)
    for name in ("ids", "mask", "weight", "targets"):  # padding may hold anything
        assert torch.equal(getattr(joined, name)[whole.real], getattr(whole, name)[whole.real])
    assert torch.equal(joined.owner, whole.owner)
    assert torch.equal(joined.draw, whole.draw)


def test_no_targets_give_one_row_without_any(make_batch):
    batch = traced(make_batch)
    (rows,) = trajectories.step_rows(batch, torch.full_like(batch.ids, -1), batch.response, batch.response.double())
    assert len(rows) == 1
    assert not rows.mask.any()


def test_left_to_right(make_batch):
    batch = make_batch([3, 6], [6, 3])
    assert trajectories.left_to_right(batch).tolist() == [[-1] * 3 + [0, 1, 2, 3, 4, 5], [-1] * 6 + [0, 1, 2]]
    batch = make_batch([3, 6], [6, 3], block_length=4)
    assert trajectories.left_to_right(batch).tolist() == [[-1] * 3 + [0, 0, 1, 2, 3, 0], [-1] * 6 + [0, 1, 0]]
    assert trajectories.longest_response(batch) == 6


def test_blocks_of_full_attention_are_those_of_the_trace(make_batch):
    batch = make_batch([3], [6])
    assert not trajectories.decoding_blocks(batch).any()
    blocks = torch.arange(9)[None] // 5
    batch.trace = Trace(torch.zeros(1, 9).long(), blocks=blocks)
    assert torch.equal(trajectories.decoding_blocks(batch), blocks)
    with pytest.raises(ValueError, match="trace: None; cj_grpo replays rollouts"):
        trajectories.step_map(make_batch([3], [6]), "cj_grpo")
    batch.trace = Trace(torch.full((1, 9), -1))
    with pytest.raises(ValueError, match="step_map: the step of no token is known; cj_grpo replays rollouts"):
        trajectories.step_map(batch, "cj_grpo")
    batch.counted = torch.zeros_like(batch.counted)
    assert (trajectories.step_map(batch, "cj_grpo") == -1).all()
