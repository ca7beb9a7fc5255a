"""Schedulers: counts by hand, whole blocks simulated, Dream's float32 arithmetic, layouts."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.decoding import schedulers
from dare_bench.dare.families.registry import UnknownName
from hypothesis import given, settings
from hypothesis import strategies as st


def run(name: str, masks: list[int], steps: list[int], *, start: list[int] | None = None, **options) -> list[list[int]]:
    """Counts that rows really commit, step by step, until nothing is masked: all rows in one batch."""
    entry, merged = schedulers.resolve(name, options)
    left, committed = torch.tensor(masks), torch.zeros(len(masks), dtype=torch.int64)
    counts: list[list[int]] = [[] for _ in masks]
    step = torch.zeros_like(left)
    for _ in range(sum(masks) + max(steps) + 1):
        alive = left > 0
        if not alive.any():
            return counts
        state = schedulers.ScheduleState(
            masks_now=left,
            masks_at_start=torch.tensor(start or masks),
            step=step,
            steps=torch.tensor(steps),
            block=torch.zeros_like(left),
            committed=committed,
        )
        found = entry.count(state, **merged)
        assert found.dtype == torch.int64 and found.shape == left.shape
        done = torch.minimum(found, left).clamp(min=0).masked_fill(~alive, 0)
        for row in alive.nonzero()[:, 0].tolist():
            counts[row].append(int(done[row]))
        left, committed, step = left - done, committed + done, step + 1
    raise AssertionError(f"{name} does not end: {counts}")


@given(st.integers(0, 200), st.integers(1, 50))
@settings(deadline=None)
def test_quota_is_even_and_front_loaded(masks, steps):
    counts = schedulers.quota(masks, steps)
    assert (len(counts), sum(counts)) == (steps, masks)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] - counts[-1] <= 1
    assert counts[0] == -(-masks // steps)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 50)), min_size=1, max_size=5))
@settings(deadline=None)
def test_quota_counts_equal_the_list(rows):
    masks, steps = [list(column) for column in zip(*rows, strict=True)]
    for (count, nominal), found in zip(rows, run("quota", masks, steps), strict=True):
        assert found == [value for value in schedulers.quota(count, nominal) if value]


def test_behind_the_last_step_quota_asks_for_one():
    one = torch.ones(3, dtype=torch.int64)
    state = schedulers.ScheduleState(one * 5, one * 9, torch.tensor([1, 2, 7]), one * 2, one, one)
    assert schedulers.quota_count(state).tolist() == [4, 1, 1]


def test_sdar_spreads_the_block_over_its_steps():
    # 3 masks in a block of 8 with 3 steps: 3 3 2 is capped at what is masked
    assert run("quota", [3, 8], [3, 3], start=[8, 8]) == [[3], [3, 3, 2]]


def dream(masks: int, steps: int, eps: float = 1e-3) -> list[int]:
    """Dream's published loop, one number at a time."""
    times = torch.linspace(1, eps, steps + 1)
    counts = []
    for index in range(steps):
        now, then = times[index], times[index + 1]
        left = torch.tensor(masks - sum(counts)) / torch.tensor(1)
        counts.append(int(left * (1 - then / now)) if index < steps - 1 else int(left))
    return counts


@given(st.integers(1, 600), st.integers(1, 600), st.sampled_from([1e-3, 1e-2, 0.0, 0.3]))
@settings(deadline=None)
def test_timesteps_equal_the_published_loop(masks, steps, eps):
    wanted = dream(masks, steps, eps)
    while wanted and wanted[-1] == 0:  # nothing is masked any more
        wanted.pop()
    assert run("timesteps", [masks], [steps], eps=eps) == [wanted]


def test_timesteps_round_down_to_nothing_at_first():
    for length in (8, 32, 256):
        assert run("timesteps", [length], [length]) == [[0, *[1] * (length - 2), 2]]


def test_timesteps_rows_count_their_own_masks_and_steps():
    rows = [(48, 20), (32, 32), (7, 3), (32, 16)]
    masks, steps = [list(column) for column in zip(*rows, strict=True)]
    assert run("timesteps", masks, steps) == [dream(*row) for row in rows]


def test_transfer_share_is_one_from_the_last_step_on():
    step, steps = torch.tensor([0, 2, 3, 9]), torch.tensor([4, 4, 4, 1])
    share = schedulers.transfer_share(step, steps, 1e-3)
    times = torch.linspace(1, 1e-3, 5)
    assert share.dtype == torch.float32
    assert share.tolist() == [float(1 - times[1] / times[0]), float(1 - times[3] / times[2]), 1.0, 1.0]


def test_ass_by_hand():
    layout = schedulers.ass_layout
    assert layout(128, 32, blocks=4) == [(15, 4), (16, 1), (32, 1), (65, 1)]
    assert layout(128, 32, blocks=1) == [(128, 7)]
    assert layout(64, 64, blocks=4) == [(7, 3), (8, 1), (16, 1), (33, 1)]
    assert layout(100, 10, blocks=2) == [(31, 5), (69, 1)]
    assert layout(1, 1, blocks=1) == [(1, 1)]
    assert run("ass", [128], [7]) == [[1, 2, 4, 8, 16, 32, 65]]
    assert run("ass", [15, 16, 65], [4, 1, 1]) == [[1, 2, 4, 8], [16], [65]]
    with pytest.raises(
        ValueError, match=r"blocks is 8; allowed: at most floor\(log2\(gen_length\)\) = 7 for 128 tokens"
    ):
        layout(128, 32, blocks=8)


@given(st.integers(2, 3000), st.integers(1, 11))
@settings(deadline=None)
def test_ass_layout_commits_powers_of_two_in_log_steps(length, blocks):
    steps = length.bit_length() - 1
    if blocks > steps:
        return
    found = schedulers.ass_layout(length, 32, blocks=blocks)
    assert len(found) == blocks and sum(size for size, _ in found) == length
    assert sum(count for _, count in found) == steps
    counts = [count for size, nominal in found for count in run("ass", [size], [nominal])[0]]
    assert counts == [*(2**exponent for exponent in range(steps - 1)), length - (2 ** (steps - 1) - 1)]


def test_ass_does_not_overflow():
    one = torch.ones(1, dtype=torch.int64)
    state = schedulers.ScheduleState(one, one, one * 90, one * 200, one, one)
    assert int(schedulers.ass(state, blocks=1)) > 0


def test_cumulative_asks_again_for_what_was_left():
    state = schedulers.ScheduleState(*(torch.zeros(5, dtype=torch.int64) for _ in range(6)))
    state.masks_at_start, state.steps = torch.full((5,), 32), torch.full((5,), 16)
    state.step = torch.tensor([0, 1, 2, 15, 20])
    state.committed = torch.tensor([0, 1, 4, 20, 31])
    assert schedulers.cumulative(state).tolist() == [2, 3, 2, 12, 1]


@given(st.integers(1, 60), st.integers(1, 70))
@settings(deadline=None)
def test_cumulative_ends(masks, steps):
    counts = run("cumulative", [masks], [steps])[0]
    assert sum(counts) == masks
    share = masks // steps
    assert counts[:steps] == ([share] * steps if share else [1] * min(masks, steps))


def test_names_and_options():
    assert list(schedulers.schedulers()) == ["ass", "cosine", "cumulative", "linear", "quota", "timesteps"]
    assert all(entry.summary and entry.name == name for name, entry in schedulers.schedulers().items())
    assert schedulers.resolve("timesteps", {})[1] == {"eps": 1e-3}
    assert schedulers.resolve("ass", {"blocks": 4})[1] == {"blocks": 4}
    with pytest.raises(UnknownName, match=r"unknown scheduler 'qouta'\. Did you mean 'quota'\? Known: ass, cosine"):
        schedulers.resolve("qouta", {})
    with pytest.raises(UnknownName, match=r"option of scheduler 'ass' 'block'\. Did you mean 'blocks'\?"):
        schedulers.resolve("ass", {"block": 4})
    for value in (0, 2.5, True, "4", None):
        with pytest.raises(ValueError, match=r"scheduler 'ass': blocks is .*; allowed: a positive whole number"):
            schedulers.resolve("ass", {"blocks": value})
    with pytest.raises(ValueError, match=r"scheduler 'timesteps': eps is 1; allowed: a number in \[0, 1\)"):
        schedulers.resolve("timesteps", {"eps": 1})
    with pytest.raises(ValueError, match="scheduler 'quota' is registered twice"):
        schedulers.scheduler("quota")(schedulers.quota_count)


@pytest.mark.parametrize(
    ("name", "steps", "expected"),
    [
        ("linear", 8, [4] * 8),
        ("linear", 12, [3, 3, 2] * 4),
        ("cosine", 8, [1, 2, 3, 4, 5, 5, 6, 6]),
        ("cosine", 12, [1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 4]),
        ("quota", 12, [3] * 8 + [2] * 4),
    ],
)
def test_published_counts_of_a_block_of_32(name, steps, expected):
    assert counts_of(name, 32, steps) == expected


@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize("masks", [1, 5, 32])
def test_mask_ratio_schedules_end_with_no_mask(name, masks):
    for steps in range(1, masks + 4):
        counts = counts_of(name, masks, steps)
        assert min(counts) >= 0
        assert sum(counts) == masks


def counts_of(name, masks, steps):
    entry, left, counts = schedulers.schedulers()[name], masks, []
    for step in range(steps):
        numbers = [torch.tensor([value]) for value in (left, masks, step, steps, 0, masks - left)]
        counts.append(int(entry.count(schedulers.ScheduleState(*numbers))))
        left -= counts[-1]
    return counts
