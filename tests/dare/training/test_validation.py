"""The checkpoint that is best on held-out rows, and what may not be selected on."""

from __future__ import annotations

import json

import pytest
import torch
from dare_bench.dare.algorithms.sft import SFT
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.progress import stop_step
from dare_bench.dare.training.validation import Best, Validation
from dare_bench.dare.training.world import ALONE
from safetensors.torch import load_file

DECODER = DecoderConfig(gen_length=6, steps_per_block=2, temperature=0.7)


def held_out():
    return [{"id": f"v{i}", "prompt": [{"role": "user", "content": f"{i} "}], "completion": str(i)} for i in range(4)]


class Scripted:
    """A reward that follows a script, whatever the answers are: one value per call."""

    __name__ = "scripted"

    def __init__(self, values):
        self.values, self.calls = list(values), 0

    def __call__(self, prompts, completions, **columns):
        value = self.values[self.calls]
        self.calls += 1
        return [value] * len(completions)


def weights(folder):
    return {name: each for path in sorted(folder.glob("*.safetensors")) for name, each in load_file(path).items()}


def trained(tiny, run, values, **changed):
    lm = tiny("llada")
    settings = TrainConfig(
        **({"steps": 8, "batch_size": 4, "lr": 1e-2, "checkpoint_every": 2, "select": "best_on:validation"} | changed)
    )
    reward = Scripted(values)
    done = run(lm, SFT(), settings, validation=Validation(held_out(), DECODER, reward))
    return done, reward


def test_the_best_of_all_checkpoints_is_kept(tiny, run):
    done, reward = trained(tiny, run, [0.1, 0.7, 0.7, 0.2])
    assert reward.calls == 4
    assert done.result.step == 4  # the earlier of two equals
    scores = {step: point["validation"] for step, point in done.points.items() if "validation" in point}
    assert scores == pytest.approx({2: 0.1, 4: 0.7, 6: 0.7, 8: 0.2})
    straight = run(tiny("llada"), SFT(), TrainConfig(steps=8, batch_size=4, lr=1e-2, select="step:4"), out="straight")
    kept, expected = weights(done.result.path), weights(straight.result.path)
    assert kept
    assert all(torch.equal(kept[name], expected[name]) for name in expected)


def test_calling_again_returns_the_kept_one(tiny, run):
    done, _ = trained(tiny, run, [0.1, 0.7, 0.7, 0.2])
    again, reward = trained(tiny, run, [])
    assert reward.calls == 0
    assert (again.result.step, again.result.sha256) == (4, done.result.sha256)


def test_a_continuation_makes_the_same_choice(tiny, run):
    lm = tiny("llada")
    settings = TrainConfig(steps=8, batch_size=4, lr=1e-2, checkpoint_every=2, select="best_on:validation")
    broken = run(lm, SFT(), settings, die_at=7, validation=Validation(held_out(), DECODER, Scripted([0.1, 0.7, 0.3])))
    assert broken.result is None
    rest = Scripted([0.2])
    done = run(tiny("llada"), SFT(), settings, validation=Validation(held_out(), DECODER, rest))
    assert rest.calls == 1
    assert done.result.step == 4


def test_a_later_record_is_made_again(tmp_path):
    written = []
    best = Best(tmp_path, lambda folder: written.append(folder), ALONE)
    (tmp_path / "best.json").write_text(json.dumps({"step": 6, "score": 0.9}), "utf-8")
    best.offer(4, 0.5)  # a continuation from step 2: step 6 will come again
    assert best.record() == {"step": 4, "score": 0.5}
    best.offer(6, 0.5)
    assert best.record() == {"step": 4, "score": 0.5}
    assert len(written) == 1


def test_a_run_killed_behind_the_move_keeps_the_checkpoint(tmp_path):
    best = Best(tmp_path, lambda folder: (folder.mkdir(), (folder / "weights").write_text("kept")), ALONE)
    best.offer(2, 0.9)
    for _ in range(2):  # the second time the move was made by an earlier attempt
        assert best.take(tmp_path / "final") == 2
        assert (tmp_path / "final" / "weights").read_text() == "kept"


def test_what_it_needs(tiny, run):
    with pytest.raises(ValueError, match="held-out rows"):
        run(tiny("llada"), SFT(), TrainConfig(steps=2, checkpoint_every=1, select="best_on:validation"))
    with pytest.raises(ValueError, match="checkpoint_every"):
        trained(tiny, run, [], checkpoint_every=0)


@pytest.mark.parametrize("select", ["best_on:test", "best_on:", "best_on", "best"])
def test_never_the_test_split(select):
    with pytest.raises(ValueError, match="best_on:SPLIT"):
        stop_step(TrainConfig(steps=3, select=select))
    assert stop_step(TrainConfig(steps=3, select="best_on:validation")) == 3
