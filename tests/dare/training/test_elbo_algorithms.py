"""Algorithms on likelihood estimates in the real loop: first values are known, weights move, under every family."""

from __future__ import annotations

import math

import pytest
import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.bgpo import BGPO, BGPOConfig
from dare_bench.dare.algorithms.dpo import DPO, DPOConfig
from dare_bench.dare.algorithms.ebpo import EBPO, EBPOConfig
from dare_bench.dare.algorithms.espo import ESPO, ESPOConfig
from dare_bench.dare.algorithms.vrpo import VRPO, VRPOConfig
from dare_bench.dare.training.config import TrainConfig

GRADED = {
    "bgpo": BGPO(BGPOConfig(group_size=4, draws=4, strata=2, eps_low=0.2, dual_clip=3.0, aggregation="token-mean")),
    "bgpo-paper": BGPO(BGPOConfig(group_size=4, draws=3, length_norm=False, inner_iterations=2)),
    "espo": ESPO(ESPOConfig(group_size=4, draws=2, inner_iterations=2)),
    "espo-0": ESPO(
        ESPOConfig(group_size=4, draws=1, inner_iterations=2, eps_low=0.0, counted="eos", kl="k1", beta=0.01)
    ),
    "ebpo": EBPO(EBPOConfig(group_size=4, draws=3, beta=0.01)),
    "ebpo-tokens": EBPO(EBPOConfig(group_size=4, draws=2, inner_iterations=2, ratio_norm="tokens", eps_high=0.28)),
}
CASES = [
    pytest.param(name, family, id=f"{name}-{family}")
    for name, algorithm in GRADED.items()
    for family in sorted(registry.get(algorithm.name).families)
]
DIFFUSION = sorted(registry.get("vrpo").families)


@pytest.mark.parametrize(("name", "family"), CASES)
def test_weights_move(tiny, run, examples, name, family):
    lm, algorithm = tiny(family), GRADED[name]
    before = lm.head_weight.detach().clone()
    settings = TrainConfig(steps=2, batch_size=2, micro_batch_size=5, lr=1e-3)
    done = run(lm, algorithm, settings, data=examples[:4])
    assert sorted(done.points) == [1, 2]
    assert all(math.isfinite(value) for point in done.points.values() for value in point.values())
    first, second = done.points[1], done.points[2]
    assert first["ratio_mean"] == pytest.approx(1.0, abs=2e-4)
    assert first["clip_fraction"] == 0.0
    assert first["grad_norm"] > 0
    if algorithm.config.beta:
        assert first["kl"] == pytest.approx(0.0, abs=1e-4)
        assert second["kl"] != 0.0
    if algorithm.config.inner_iterations == 2:
        assert second["ratio_mean"] != pytest.approx(1.0, abs=2e-4)
    assert not torch.equal(lm.head_weight, before)


@pytest.fixture
def pairs(examples):
    return [{**example, "rejected": "9" * (1 + index % 4)} for index, example in enumerate(examples[:8])]


@pytest.mark.parametrize("family", DIFFUSION)
def test_vrpo_starts_at_ln_2_and_learns(tiny, run, pairs, family):
    lm = tiny(family)
    before = lm.head_weight.detach().clone()
    settings = TrainConfig(steps=4, batch_size=4, micro_batch_size=5, lr=2e-3)
    done = run(lm, VRPO(VRPOConfig(draws=2, sft_weight=0.0)), settings, data=pairs)
    assert done.points[1]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert done.points[4]["loss"] < math.log(2) - 0.01
    assert done.points[4]["accuracy"] > 0.5
    assert not torch.equal(lm.head_weight, before)


@pytest.mark.parametrize("family", DIFFUSION)
def test_dpo_runs_on_noise_of_its_own(tiny, run, pairs, family):
    lm = tiny(family)
    before = lm.head_weight.detach().clone()
    done = run(lm, DPO(DPOConfig()), TrainConfig(steps=2, batch_size=4, micro_batch_size=5, lr=1e-3), data=pairs)
    assert abs(done.points[1]["loss"] - math.log(2)) > 1e-3
    assert all(math.isfinite(value) for point in done.points.values() for value in point.values())
    assert not torch.equal(lm.head_weight, before)


def test_pairs_are_asked_for(tiny, run, examples):
    for algorithm in (VRPO(VRPOConfig()), DPO(DPOConfig())):
        with pytest.raises(ValueError, match="trains on chosen/rejected pairs"):
            run(tiny("llada"), algorithm, TrainConfig(steps=1), data=examples, out=algorithm.name)
