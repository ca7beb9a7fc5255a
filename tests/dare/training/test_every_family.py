"""Every diffusion family is trained by the same code: losses fall, adapters learn, Dream's shift reaches the targets."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.d1 import D1, D1Config
from dare_bench.dare.algorithms.registry import get
from dare_bench.dare.algorithms.sft import SFT
from dare_bench.dare.families.registry import families
from dare_bench.dare.training import replay
from dare_bench.dare.training.config import LoraConfig, TrainConfig
from dare_bench.dare.training.data import Encoded, collate, encode

DIFFUSION = sorted(name for name, family in families().items() if family.trainer == "loop")
NEW = ["dream", "llada2_moe", "llada_moe", "sdar_moe"]


def test_all_are_here():
    assert {*NEW, "llada", "sdar"} == set(DIFFUSION)
    assert all(get(name, "dream").families == set(DIFFUSION) for name in ("sft", "d1"))


@pytest.fixture(params=NEW)
def family(request):
    return request.param


def letters(text):
    data = [
        {"id": a + b, "prompt": [{"role": "user", "content": a + b}], "completion": a * 6} for a in text for b in text
    ]
    assert len(data) == len(text) ** 2
    return data


@torch.no_grad()
def surprise(lm, data):
    """Mean negative log-probability of the masked answer tokens, under one fixed draw of masks."""
    (rows,) = SFT().rows(collate(lm, encode(lm, data, max_length=64)), Context(run_seed=99))
    return -float(replay.score(lm, rows)[rows.mask].mean())


@pytest.mark.parametrize("peft", [None, LoraConfig(r=8, alpha=32)], ids=["full", "lora"])
def test_sft_makes_the_answers_likely(tiny, run, family, peft):
    settings = TrainConfig(steps=60, batch_size=16, lr=2e-2 if peft else 5e-3, weight_decay=0.0, peft=peft)
    lm, data = tiny(family, block=4, std=0.2), letters("abcd")
    weights = {name: weight.detach().clone() for name, weight in lm.model.named_parameters()}
    before = surprise(lm, data)
    done = run(lm, SFT(), settings, data=data, **({"base": "elsewhere"} if peft else {}))
    assert len(done.points) == 60
    assert before > 3
    assert surprise(lm.eval(), data) < (0.75 if peft else 0.5) * before
    same = [name for name, now in lm.model.named_parameters() if name in weights and torch.equal(now, weights[name])]
    assert bool(same) == (peft is not None)  # with adapters the base stays as it is


def test_d1_runs_and_moves_the_weights(tiny, run, family):
    lm = tiny(family, block=4)
    before = lm.head_weight.detach().clone()
    algorithm = D1(D1Config(group_size=4, inner_iterations=2))
    done = run(lm, algorithm, TrainConfig(steps=2, batch_size=3, lr=1e-3), data=letters("ab"))
    assert all(torch.isfinite(torch.tensor(list(point.values()))).all() for point in done.points.values())
    assert done.result.totals["rollout_nfe"] > 0
    assert not torch.equal(lm.head_weight, before)


@torch.no_grad()
def test_scores_of_dream_come_from_the_row_before(tiny):
    lm = tiny("dream", text=False, dtype=torch.float64)
    batch = collate(lm, [Encoded("a", [5, 6, 7], [8, 9, 10, 11], {})])
    (rows,) = SFT().rows(batch, Context(run_seed=0))
    found = replay.score(lm, rows)
    raw = lm.model(input_ids=rows.ids, position_ids=rows.position_ids).logits.log_softmax(-1)
    assert rows.mask.any()
    for row, column in rows.mask.nonzero().tolist():
        expected = raw[row, column - 1, rows.targets[row, column, 0]]
        assert float(found[row, column, 0]) == pytest.approx(float(expected), abs=1e-9)
