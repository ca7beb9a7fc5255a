"""Rollouts: groups, rewards, counted tokens, and the room every response has."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.training.data import encode
from dare_bench.dare.training.rollout import rollout

DECODER = DecoderConfig(gen_length=6, steps_per_block=2, temperature=1.0)


@pytest.fixture(params=["llada", "sdar"])
def lm(request, tiny):
    return tiny(request.param)


def roll(lm, examples, reward, count=3, **options):
    chosen = examples[:count]
    defaults = {"group_size": 4, "seed": 1, "step": 0, "reward_funcs": [reward]}
    prompts = encode(lm, chosen, max_length=64)
    return rollout(lm, prompts, [example["prompt"] for example in chosen], DECODER, **defaults | options)


def test_groups_are_adjacent_and_graded_with_their_columns(lm, examples):
    def score(prompts, completions, answer, **columns):
        assert [prompt[0]["content"] for prompt in prompts[:4]] == [examples[0]["prompt"][0]["content"]] * 4
        assert all(completion[0]["role"] == "assistant" for completion in completions)
        return [float(value) for value in answer]

    done = roll(lm, examples, score)
    assert done.batch.groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert done.batch.rewards.tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4
    assert done.metrics["reward/score"] == done.metrics["reward"] == 1.0
    assert done.metrics["zero_variance_groups"] == 1.0
    assert done.batch.sample_ids == ["e0"] * 4 + ["e1"] * 4 + ["e2"] * 4
    assert len({tuple(generation.token_ids) for generation in done.generations[:4]}) > 1


def test_weights_and_missing_grades(lm, examples):
    def half(**columns):
        return [None if index % 2 else 1.0 for index in range(len(columns["completions"]))]

    def one(**columns):
        return [1.0] * len(columns["completions"])

    done = roll(lm, examples, None, reward_funcs=[half, one], reward_weights=[2.0, 0.5])
    assert done.batch.rewards.tolist() == [2.5, 0.5] * 6


def test_counted_tokens_end_with_the_first_stop_token(lm, examples, reward):
    done = roll(lm, examples, reward, count=6)
    batch = done.batch
    for row, generation in enumerate(done.generations):
        begin = int(batch.prompt_lengths[row])
        length = len(generation.text_ids) + (generation.finish_reason == "stop")
        assert batch.counted[row].sum() == length
        assert batch.counted[row, begin : begin + length].all()
        assert batch.ids[row, begin : begin + length].tolist() == generation.token_ids[:length]
    assert done.tokens == sum(generation.cost.tokens_committed for generation in done.generations)
    assert done.nfe == sum(generation.cost.nfe for generation in done.generations)


def test_every_row_has_the_room_it_was_decoded_in(lm, examples, reward):
    """What a surrogate masks is a property of the row: it may not depend on the longest response of the batch."""
    many, alone = roll(lm, examples, reward, count=5).batch, roll(lm, examples, reward, count=1).batch
    assert torch.equal(many.lengths[:4], alone.lengths)
    width = int(alone.lengths[0])
    assert torch.equal(many.ids[:4, :width], alone.ids)
    assert torch.equal(many.response[:4, :width], alone.response)
    if not lm.is_block_causal:
        assert (many.lengths - many.prompt_lengths).tolist() == [6] * 20
    else:
        assert (many.lengths % 4 == 0).all()


def test_draws_belong_to_seed_step_and_sample(lm, examples, reward):
    def tokens(**options):
        return [generation.token_ids for generation in roll(lm, examples, reward, **options).generations]

    assert tokens() == tokens()
    assert tokens(batch_size=5) == tokens()
    assert tokens(step=1) != tokens()
    assert tokens(seed=2) != tokens()
