"""Algorithms on random masks in the real loop: every family they are offered for, inner iterations, references, adapters."""

from __future__ import annotations

import math

import pytest
import torch
from dare_bench.dare.algorithms.registry import get
from dare_bench.dare.training.config import LoraConfig, TrainConfig

#: Few draws and iterations; what is kept are the kinds of rows.
OPTIONS = {
    "d1": {"group_size": 4, "inner_iterations": 2},
    "coupled_grpo": {"group_size": 4, "inner_iterations": 2, "beta": 0.01},
    "spg": {"group_size": 4, "inner_iterations": 2, "mask_block": 3},
    "wd1": {"group_size": 4, "inner_iterations": 2},
    "unigrpo": {"group_size": 4, "inner_iterations": 3},
}
CASES = [pytest.param(name, family, id=f"{name}-{family}") for name in OPTIONS for family in sorted(get(name).families)]


def build(name, **changes):
    entry = get(name)
    return entry.cls(entry.config_class(**{**OPTIONS[name], **changes}))


@pytest.mark.parametrize(("name", "family"), CASES)
def test_runs_and_moves_the_weights(tiny, run, name, family):
    lm = tiny(family, block=4)
    before = lm.head_weight.detach().clone()
    done = run(lm, build(name), TrainConfig(steps=4, batch_size=2, lr=1e-3))
    assert set(done.points) == {1, 2, 3, 4}
    assert all(math.isfinite(value) for point in done.points.values() for value in point.values())
    assert done.result.totals["rollout_nfe"] > 0
    assert done.result.totals["train_tokens"] > 0
    assert not torch.equal(lm.head_weight, before)


@pytest.mark.parametrize("name", ["coupled_grpo", "unigrpo", "d1"])
def test_the_ratio_is_one_at_first_and_not_after(tiny, run, name):
    done = run(tiny("llada"), build(name, beta=0.1), TrainConfig(steps=2, batch_size=3, lr=3e-3))
    assert done.points[1]["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert done.points[1]["clip_fraction"] == 0.0
    assert done.points[1]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert abs(done.points[2]["ratio_mean"] - 1.0) > 1e-5
    assert done.points[2]["kl"] > 1e-6


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_micro_batches_change_nothing(tiny, run, name):
    losses = []
    for size in (None, 3):
        settings = TrainConfig(steps=2, batch_size=2, lr=1e-3, micro_batch_size=size)
        done = run(tiny("llada"), build(name), settings, out=f"run{size}")
        losses.append([point["loss"] for point in done.points.values()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_adapters_learn_and_the_base_stays(tiny, run, name):
    lm = tiny("dream")
    base = {key: weight.detach().clone() for key, weight in lm.model.named_parameters()}
    settings = TrainConfig(steps=2, batch_size=2, lr=1e-2, peft=LoraConfig(r=4))
    done = run(lm, build(name), settings, base="elsewhere")
    assert done.points[1]["grad_norm"] > 0
    names = {key: weight for key, weight in lm.model.named_parameters() if key in base}
    assert names
    assert all(torch.equal(weight, base[key]) for key, weight in names.items())


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_presets_run(tiny, run, name):
    """Every preset with its optimiser settings, on one small batch."""
    entry = get(name)
    for preset, options in entry.presets.items():
        algorithm = entry.cls(entry.config_class(**{**options, "group_size": 2, "inner_iterations": 2}))
        settings = {**entry.train_presets.get(preset, {}), "batch_size": 1, "steps": 2}
        done = run(tiny("llada"), algorithm, TrainConfig(**settings), out=preset)
        assert all(math.isfinite(value) for point in done.points.values() for value in point.values()), preset
