"""UniGRPO: the schedule of its mask ratio, and what it scores."""

from __future__ import annotations

import itertools

import pytest
import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.d1 import D1, D1Config
from dare_bench.dare.algorithms.unigrpo import UniGRPO, UniGRPOConfig, schedule
from hypothesis import given
from hypothesis import strategies as st

MASK = 63
PROMPTS, RESPONSES, COUNTED = [3, 5, 4, 6], [8, 5, 6, 7], [8, 2, 6, 5]


@pytest.fixture(params=[0, 4], ids=["full", "blocks"])
def batch(request, make_batch):
    return make_batch(PROMPTS, RESPONSES, counted=COUNTED, block_length=request.param, groups=[0, 0, 1, 1],
                      rewards=[1.0, 0.0, 0.5, 0.25])  # fmt: skip


def rows_of(batch, config=None, **context):
    (rows,) = UniGRPO(config).rows(batch, Context(**({"run_seed": 0, "inner_iterations": 4} | context)))
    return rows


def hidden(rows):
    return (rows.ids == MASK) & rows.real


@given(start=st.floats(0, 1), timesteps=st.integers(1, 1000), iterations=st.integers(1, 40))
def test_the_schedule_never_falls_and_ends_at_the_full_mask(start, timesteps, iterations):
    found = schedule(start, timesteps, iterations)
    assert len(found) == iterations
    assert found == sorted(found)
    assert found[0] == int(start * timesteps)
    assert found[-1] == (timesteps if iterations > 1 else found[0])
    gaps = [two - one for one, two in itertools.pairwise(found)]
    assert max(gaps, default=0) - min(gaps, default=0) <= 1


def test_one_start_per_rollout_batch():
    algorithm = UniGRPO()
    for step in range(5):
        times = [algorithm.timestep(Context(0, step=step, inner=inner, inner_iterations=4)) for inner in range(4)]
        gaps = {two - one for one, two in itertools.pairwise(times)}
        assert times[-1] == 128
        assert max(gaps) - min(gaps) <= 1
    starts = [algorithm.timestep(Context(0, step=step, inner_iterations=4)) for step in range(200)]
    assert sum(starts) / 200 == pytest.approx(64, abs=8)


def test_the_share_of_each_response_follows_the_schedule(make_batch):
    batch = make_batch([4] * 6, [32] * 6, counted=[32, 32, 20, 20, 10, 10])
    for step in range(4):
        for inner in range(4):
            rows = rows_of(batch, step=step, inner=inner)
            t = UniGRPO().timestep(Context(0, step=step, inner=inner, inner_iterations=4))
            counted = batch.counted.sum(1)
            found = rows.mask.sum(1)
            assert ((found - counted * t / 128).abs() <= 0.5).logical_or(found == 1).all()
            behind = (hidden(rows) & ~batch.counted).sum(1)
            assert ((behind - (32 - counted) * t / 128).abs() <= 0.5).all()


def test_positions_change_with_the_inner_iteration(make_batch):
    batch = make_batch([4] * 6, [32] * 6)
    algorithm = UniGRPOConfig(timesteps=128)
    first = [rows_of(batch, algorithm, step=3, inner=inner).mask for inner in range(3)]
    assert (first[0] & ~first[1]).any()  # drawn afresh, not grown
    assert not torch.equal(first[1], first[2])


def test_at_least_one_masked_token(make_batch):
    batch = make_batch([4] * 5, [3] * 5, counted=[3, 2, 1, 1, 0])
    config = UniGRPOConfig(timesteps=10_000)
    for step in range(60):
        rows = rows_of(batch, config, step=step)
        assert rows.mask.any(1).tolist() == [True] * 4 + [False]


def test_the_prompt_stays_and_only_masked_tokens_are_scored(batch):
    for inner in range(4):
        rows = rows_of(batch, inner=inner)
        for n in range(len(rows)):
            prompt = rows.real[n] & (rows.position_ids[n] < PROMPTS[n])
            assert not (hidden(rows)[n] & prompt).any()
        assert not (rows.mask & ~hidden(rows)).any()
        leaf = torch.where(rows.mask, -1.0, 0.0).double()[..., None].requires_grad_()
        algorithm = UniGRPO(UniGRPOConfig(beta=0.0))
        loss, _ = algorithm.loss(leaf, leaf.detach(), None, rows, algorithm.advantages(batch), Context(0, batch=batch))
        (gradient,) = torch.autograd.grad(loss, leaf)
        assert not gradient[~rows.mask].any()
        assert gradient[rows.mask].all()


def test_the_last_iteration_is_d1_without_prompt_masks(batch):
    rows = rows_of(batch, inner=3)
    (other,) = D1(D1Config(prompt_mask=0.0)).rows(batch, Context(0))
    for name in ("ids", "mask", "targets", "real", "position_ids"):
        assert torch.equal(getattr(rows, name), getattr(other, name)), name
    shared = {"beta": 0.1, "eps_low": 0.2, "aggregation": "seq-mean-token-mean", "advantage": "std"}
    new = torch.where(rows.mask, -1.0 - 0.1 * rows.position_ids, 0.0).double()[..., None]
    losses = []
    for algorithm in (UniGRPO(UniGRPOConfig(**shared)), D1(D1Config(**shared))):
        loss, _ = algorithm.loss(new, 1.1 * new, 1.2 * new, rows, algorithm.advantages(batch), Context(0, batch=batch))
        losses.append(float(loss))
    assert losses[0] == losses[1] != 0


def test_options_and_preset():
    with pytest.raises(ValueError, match=r"timesteps: 0.*allowed"):
        UniGRPOConfig(timesteps=0)
    entry = registry.get("unigrpo")
    config = entry.config_class(**entry.presets["paper"])
    assert (config.advantage, config.aggregation) == ("std", "seq-mean-token-mean")
