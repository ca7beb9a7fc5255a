"""A run that was stopped and continued equals a run that was not, bit for bit."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.algorithms.d1 import D1, D1Config
from dare_bench.dare.algorithms.sft import SFT, SFTConfig
from dare_bench.dare.training.config import LoraConfig, TrainConfig

COMMON = {"batch_size": 3, "lr": 1e-2, "checkpoint_every": 2, "schedule": "linear", "warmup_steps": 2}
CASES = {
    "sft": ("llada", SFT(), TrainConfig(steps=7, **COMMON)),
    "sft, blocks": ("sdar", SFT(SFTConfig(noise_scope="block")), TrainConfig(steps=7, pad_blocks=2, **COMMON)),
    "sft, lora": ("llada", SFT(), TrainConfig(steps=7, peft=LoraConfig(r=4, alpha=8, dropout=0.2), **COMMON)),
    "sft, muon": ("sdar", SFT(), TrainConfig(steps=7, optimizer="muon", **COMMON)),
    "sft, lora, muon": ("sdar", SFT(), TrainConfig(steps=7, optimizer="muon", peft=LoraConfig(r=4), **COMMON)),
    "d1": ("llada", D1(D1Config(group_size=2)), TrainConfig(steps=6, **COMMON)),
    "d1, two passes": ("sdar", D1(D1Config(group_size=2, inner_iterations=2)), TrainConfig(steps=7, **COMMON)),
    "d1, reference": (
        "llada",
        D1(D1Config(group_size=2, inner_iterations=2, beta=0.1)),
        TrainConfig(steps=6, **COMMON),
    ),
    "d1, lora, reference": (
        "sdar",
        D1(D1Config(group_size=2, inner_iterations=2, beta=0.1)),
        TrainConfig(steps=6, peft=LoraConfig(r=4), **COMMON),
    ),
}


def without_wall(totals):
    return {name: value for name, value in totals.items() if not name.endswith("wall_s")}


@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_continues_bit_for_bit(tiny, run, case):
    family, algorithm, config = CASES[case]
    straight = run(tiny(family), algorithm, config, out="straight", base="b")
    assert straight.resumed == [0]
    assert sorted(straight.points) == list(range(1, config.steps + 1))
    assert max(point["grad_norm"] for point in straight.points.values()) > 1e-3  # there is something to continue

    stopped = run(tiny(family), algorithm, config, out="stopped", base="b", die_at=5)
    assert stopped.result is None
    # The weights of the dead process are gone: a new one starts from the same base.
    resumed = run(tiny(family), algorithm, config, out="stopped", base="b")
    assert resumed.resumed == [4]

    for (name, expected), found in zip(
        straight.lm.model.state_dict().items(), resumed.lm.model.state_dict().values(), strict=True
    ):
        assert torch.equal(expected, found), name
    assert {**stopped.points, **resumed.points} == straight.points
    assert resumed.result.sha256 == straight.result.sha256
    assert without_wall(resumed.result.totals) == without_wall(straight.result.totals)


def test_a_run_that_dies_before_its_first_state_starts_over(tiny, run):
    family, algorithm, config = CASES["sft"]
    run(tiny(family), algorithm, config, die_at=2)
    again = run(tiny(family), algorithm, config)
    assert again.resumed == [0]
    assert again.result.sha256 == run(tiny(family), algorithm, config, out="other").result.sha256


def test_a_cycle_is_never_cut(tiny, run):
    """With two passes per rollout, states are written only behind the second."""
    algorithm = D1(D1Config(group_size=2, inner_iterations=2))
    config = TrainConfig(steps=8, batch_size=2, checkpoint_every=3)
    run(tiny("llada"), algorithm, config, die_at=6)
    again = run(tiny("llada"), algorithm, config)
    assert again.resumed == [4]
    assert again.result.step == 8
