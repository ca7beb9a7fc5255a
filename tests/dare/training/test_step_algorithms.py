"""Algorithms on denoising steps in the real loop: rollouts are replayed as they happened, weights move."""

from __future__ import annotations

import math

import pytest
import torch
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.cj_grpo import CJGRPO, CJGRPOConfig
from dare_bench.dare.algorithms.justgrpo import JustGRPO, JustGRPOConfig
from dare_bench.dare.algorithms.trace_rl import TraceRL, TraceRLConfig
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.trajectory import states
from dare_bench.dare.families.registry import families
from dare_bench.dare.training import replay
from dare_bench.dare.training.batches import rollout_decoder
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.data import encode
from dare_bench.dare.training.rollout import rollout

DIFFUSION = sorted(name for name, family in families().items() if family.trainer == "loop")
#: Merging steps changes what a token is scored in: every step on its own here. No group is without a gradient.
EXACT = {
    "cj_grpo": CJGRPO(CJGRPOConfig(group_size=4)),
    "trace_rl": TraceRL(TraceRLConfig(group_size=4)),
    "justgrpo": JustGRPO(JustGRPOConfig(group_size=4)),
}
DECODERS = {
    "even": {"steps_per_block": 2},
    "blocks": {"block_length": 4, "steps_per_block": 3, "early_stop": "now"},
    "threshold": {"selector": "threshold", "selector_options": {"threshold": 0.05}},
    "ass": {"scheduler": "ass", "weighting": "eoser", "early_stop": False},
}


def roll(lm, algorithm, examples, reward, gen_length=8, **fields):
    decoder = rollout_decoder(DecoderConfig(gen_length=gen_length, **fields), 1.0, algorithm.needs.rollout)
    chosen = examples[:3]
    prompts = encode(lm, chosen, max_length=64)
    return rollout(
        lm, prompts, [example["prompt"] for example in chosen], decoder, group_size=4, seed=3, step=0,
        reward_funcs=[reward],
    )  # fmt: skip


def check_replay(lm, algorithm, rolled):
    """Each token's score equals the probability with which it was chosen; every chosen, counted token is scored once."""
    batch = rolled.batch
    chosen = torch.zeros(batch.ids.shape)
    for index, generation in enumerate(rolled.generations):
        begin = int(batch.prompt_lengths[index])
        confidence = torch.tensor([max(value, 0.0) for value in generation.confidence])
        chosen[index, begin : begin + len(confidence)] = confidence
    seen = torch.zeros_like(batch.ids)
    for rows in algorithm.rows(batch, Context(0)):
        found = replay.score_all(lm.eval(), rows, 16)[..., 0]
        owner = rows.owner[:, None].expand(rows.mask.shape)[rows.mask]
        place = rows.position_ids[rows.mask]
        assert torch.equal(rows.targets[..., 0][rows.mask], batch.ids[owner, place])
        # Generations hold probabilities of six decimals; their relative difference is that of the logarithms.
        torch.testing.assert_close(found[rows.mask].exp(), chosen[owner, place], atol=1e-6, rtol=1e-4)
        seen.index_put_((owner, place), torch.ones_like(owner), accumulate=True)
    counted = algorithm.counted(batch) & (batch.trace.step_map >= 0)
    if isinstance(algorithm, JustGRPO):
        counted &= (algorithm.advantages(batch) != 0)[:, None]
    assert counted.any()
    assert torch.equal(seen, counted.long())


@pytest.mark.parametrize("family", DIFFUSION)
@pytest.mark.parametrize("name", EXACT)
def test_tokens_score_as_they_were_chosen(tiny, examples, reward, family, name):
    lm = tiny(family)
    check_replay(lm, EXACT[name], roll(lm, EXACT[name], examples, reward, steps_per_block=2))


@pytest.mark.parametrize("family", ["llada", "sdar"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_under_other_decoders(tiny, examples, reward, family, decoder):
    fields = {**DECODERS[decoder]}
    if family == "sdar" and decoder == "ass":
        fields["scheduler"] = "quota"  # that of the other lays blocks out itself
    lm = tiny(family)
    for name in ("cj_grpo", "trace_rl"):
        check_replay(lm, EXACT[name], roll(lm, EXACT[name], examples, reward, **fields))


def test_rows_are_the_inputs_of_the_forwards(tiny, examples, reward):
    lm = tiny("llada")
    rolled = roll(lm, EXACT["cj_grpo"], examples, reward, block_length=4, steps_per_block=3)
    batch = rolled.batch
    rows = [row for part in EXACT["cj_grpo"].rows(batch, Context(0)) for row in zip(part.owner, part.ids, strict=True)]
    for index, generation in enumerate(rolled.generations):
        begin = int(batch.prompt_lengths[index])
        inputs = [row[begin:].tolist() for owner, row in rows if int(owner) == index]
        seen = list(states(generation.token_ids, generation.step_map, lm.mask_token_id))[:-1]
        used = [step for step in range(len(seen)) if step in generation.step_map]
        assert [row[: len(generation.token_ids)] for row in inputs] == [seen[step] for step in used]
        behind = slice(len(generation.token_ids), int(batch.lengths[index]) - begin)
        assert all(token == lm.mask_token_id for row in inputs for token in row[behind])


def test_the_trace_tells_blocks_and_limit(tiny, examples, reward):
    for family, length in (("llada", 8), ("sdar", 8)):
        lm = tiny(family)
        rolled = roll(lm, EXACT["cj_grpo"], examples, reward, gen_length=length, block_length=4, early_stop=False)
        trace = rolled.batch.trace
        assert trace.limit == length
        for index, generation in enumerate(rolled.generations):
            begin = int(rolled.batch.prompt_lengths[index])
            found = trace.blocks[index, begin : begin + len(generation.token_ids)].tolist()
            wanted = [sum(start <= place for start in generation.block_starts) - 1 for place in range(len(found))]
            assert found == wanted
            assert max(found) >= 1


@pytest.mark.parametrize("family", DIFFUSION)
@pytest.mark.parametrize(
    "algorithm",
    [
        CJGRPO(CJGRPOConfig(group_size=4, inner_iterations=2, beta=0.04)),
        CJGRPO(CJGRPOConfig(group_size=4, merge=0, dual_clip=3.0, advantage="std")),
        TraceRL(TraceRLConfig(group_size=4, inner_iterations=2, shrink=2)),
        JustGRPO(JustGRPOConfig(group_size=4, temperature=0.8, position_chunk=3)),
        JustGRPO(JustGRPOConfig(group_size=4, inner_iterations=2, reduction="token-mean", beta=0.01)),
    ],
    ids=["cj", "cj-merged", "trace", "just", "just-dare"],
)
def test_weights_move(tiny, run, examples, family, algorithm):
    lm = tiny(family)
    before = lm.head_weight.detach().clone()
    settings = TrainConfig(steps=2, batch_size=2, micro_batch_size=5, lr=1e-3)
    done = run(lm, algorithm, settings, data=examples[:4])
    assert sorted(done.points) == [1, 2]
    assert all(math.isfinite(value) for point in done.points.values() for value in point.values())
    assert done.points[1]["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert done.points[1]["clip_fraction"] == 0.0
    assert done.points[1]["grad_norm"] > 0
    assert (done.points[2]["ratio_mean"] == pytest.approx(1.0, abs=1e-6)) == (algorithm.config.inner_iterations == 1)
    assert not torch.equal(lm.head_weight, before)


@pytest.mark.parametrize("name", EXACT)
def test_a_batch_without_advantages_is_a_step_of_zero_loss(tiny, run, examples, name):
    def same(prompts, completions, **columns):
        return [0.5] * len(completions)

    for family in ("llada", "sdar"):
        lm = tiny(family)
        settings = TrainConfig(steps=1, batch_size=2, micro_batch_size=5, lr=1e-3, weight_decay=0.0)
        done = run(lm, EXACT[name], settings, data=examples[:4], reward_funcs=[same], out=family)
        assert done.points[1]["loss"] == 0.0
        assert done.points[1]["grad_norm"] < 1e-6


@pytest.mark.parametrize("name", EXACT)
def test_decoders_that_cannot_be_replayed_are_refused(tiny, run, name):
    wrong = [
        ({"early_stop": "fill"}, "early_stop: 'fill'; allowed"),
        ({"compat": {"overwrite": {}}}, "compat: {'overwrite'"),
    ]
    if name != "justgrpo":  # whose rollouts edit nothing, whatever the decoder says
        wrong.append(
            ({"editor": "token_editing", "editor_options": {"threshold": 0.5}}, "editor: 'token_editing'; allowed")
        )
    for fields, said in wrong:
        with pytest.raises(ValueError, match=said):
            run(
                tiny("sdar"),
                EXACT[name],
                TrainConfig(steps=1, batch_size=2),
                decoder=DecoderConfig(gen_length=4, **fields),
            )
