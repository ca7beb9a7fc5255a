"""Small experiments: the losses teach what they should, through the project's own loop (bounds of the specification)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from dare_bench.dare.algorithms.d1 import D1, D1Config
from dare_bench.dare.algorithms.sft import SFT, SFTConfig
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.data import encode

LENGTH = 8


def message(text):
    return [{"role": "user", "content": text}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "config"),
    [("llada", SFTConfig()), ("sdar", SFTConfig(noise_scope="block"))],
)
def test_sft_learns_to_copy(tiny, run, family, config):
    """The answer is eight copies of the first prompt token. Loss of the last ten steps < 0.1, accuracy > 0.95."""
    data = [
        {"id": first + second, "prompt": message(first + second), "completion": first * LENGTH}
        for first in "abcdefgh"
        for second in "abcdefgh"
    ]
    lm = tiny(family, block=2, std=0.1)
    settings = TrainConfig(
        steps=200, batch_size=32, lr=1e-2, optimizer="muon", muon_lr=2e-2, schedule="linear", weight_decay=0.0
    )
    done = run(lm, SFT(config), settings, data=data)
    losses = [point["loss"] for point in done.points.values()]
    assert sum(losses[:10]) / 10 > 1.0
    assert sum(losses[-10:]) / 10 < 0.1

    lm.eval()
    prompts = [lm.encode_chat(example["prompt"]) for example in data]
    decoder = DecoderConfig(gen_length=LENGTH + 2, steps_per_block=1)
    found = generate(lm, prompts, decoder, [0] * len(prompts))
    right = [token == row.response[0] for g, row in zip(found, encode(lm, data, max_length=64), strict=True)
             for token in g.token_ids[:LENGTH]]  # fmt: skip
    assert len(right) == 64 * LENGTH
    assert sum(right) / len(right) > 0.95


def copies(prompts, completions, **columns):
    """Share of eight characters that equal the first of the prompt."""
    firsts = [prompt[0]["content"][0] for prompt in prompts]
    texts = [completion[0]["content"] for completion in completions]
    return [text[:LENGTH].count(first) / LENGTH for first, text in zip(firsts, texts, strict=True)]


class Shuffled(D1):
    """Control: advantages dealt to other responses of the batch."""

    def advantages(self, batch):
        values = super().advantages(batch)
        return values[torch.randperm(len(values), generator=torch.Generator().manual_seed(int(values.sum() * 1e6)))]


@pytest.fixture
def eight_letters(tiny):
    """A one-layer model whose output head knows eight letters; the scores of all other tokens start at zero."""

    def build(family):
        lm = tiny(family, layers=1, block=4 if family == "sdar" else LENGTH)
        allowed = lm.tokenizer.convert_tokens_to_ids(list("abcdefgh"))
        with torch.no_grad():
            head = lm.model.lm_head.weight
            keep = head[allowed].clone()
            head.zero_()
            head[allowed] = keep
        return lm

    return build


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_d1_raises_the_reward_and_shuffled_advantages_do_not(eight_letters, run, family):
    """Eight prompts, groups of eight, four denoising steps: last five > 0.3 and twice the control."""
    data = [{"id": letter, "prompt": message(letter + "a")} for letter in "abcdefgh"]
    options = D1Config(group_size=8, inner_iterations=2, advantage="std", eps_low=0.2, prompt_mask=0.0)
    settings = TrainConfig(steps=90, batch_size=8, lr=3e-3, weight_decay=0.0)
    decoder = DecoderConfig(gen_length=LENGTH, steps_per_block=4 if family == "llada" else 2)

    def rewards(algorithm, steps):
        done = run(
            eight_letters(family),
            algorithm,
            replace(settings, select=f"step:{steps}"),
            data=data,
            decoder=decoder,
            reward_funcs=[copies],
            out=type(algorithm).__name__,
        )
        return [done.points[step]["reward"] for step in range(1, steps, 2)]

    trained, control = rewards(D1(options), 90), rewards(Shuffled(options), 40)
    first, last, chance = (sum(values) / 5 for values in (trained[:5], trained[-5:], control[-5:]))
    assert last > 0.3
    assert last > 2 * chance
    assert last > first + 0.15
