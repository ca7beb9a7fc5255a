"""Rollouts that keep every step or branch: traces, grading, cost, and algorithms on them in the real loop."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from dare_bench.dare.algorithms.base import Context, Needs
from dare_bench.dare.algorithms.dtreerpo import DTreeRPO, DTreeRPOConfig
from dare_bench.dare.algorithms.mdpo import MDPO, MDPOConfig
from dare_bench.dare.algorithms.trees import Shape, children
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.training import replay
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.data import encode
from dare_bench.dare.training.rollout_kinds import KINDS, kind_of
from dare_bench.dare.training.rollout_states import rollout_states
from dare_bench.dare.training.rollout_tree import rollout_tree

FULL = ["dream", "llada", "llada_moe"]
DECODER = DecoderConfig(gen_length=10, block_length=4, steps_per_block=2, temperature=1.0)


class Counting:
    """A reward that remembers its calls: share of characters below 'P', or nothing for every third example."""

    def __init__(self) -> None:
        self.calls = []
        self.__name__ = "counting"

    def __call__(self, prompts, completions, **columns):
        texts = [completion[0]["content"] for completion in completions]
        asked = [prompt[0]["content"] for prompt in prompts]
        self.calls.append(list(zip(asked, texts, columns["tokens_left"], columns["answer"], strict=True)))
        return [sum(character < "P" for character in text) / max(len(text), 1) for text in texts]


def states(lm, examples, **options):
    chosen = examples[:3]
    given = {"group_size": 3, "seed": 3, "step": 0, "reward_funcs": [Counting()], **options}
    prompts = encode(lm, chosen, max_length=64)
    return rollout_states(lm, prompts, [each["prompt"] for each in chosen], given.pop("decoder", DECODER), **given)


def tree(lm, examples, **options):
    chosen = examples[:3]
    given = {"shape": Shape(2, 3, 2), "seed": 3, "step": 0, "reward_funcs": [Counting()], **options}
    prompts = encode(lm, chosen, max_length=64)
    return rollout_tree(lm, prompts, [each["prompt"] for each in chosen], given.pop("decoder", DECODER), **given)


@pytest.mark.parametrize("family", FULL)
@pytest.mark.parametrize("remask", [False, True])
def test_every_step_is_kept(tiny, examples, family, remask):
    lm = tiny(family)
    rolled = states(lm, examples, remask=remask)
    batch, steps = rolled.batch, rolled.batch.trace.steps
    count, total, width = steps.inputs.shape
    assert (count, total, width) == (9, 6, batch.ids.shape[1])
    masked = steps.inputs == lm.mask_token_id
    assert masked.sum(2).unique(dim=0).tolist() == [[10, 8, 6, 4, 2, 1]]
    assert torch.equal(steps.guesses[:, -1], batch.ids)
    assert torch.equal(steps.rewards[:, -1], batch.rewards)
    assert torch.equal(steps.guesses[~masked], steps.inputs[~masked])
    assert torch.equal(steps.confidence > 0, masked)
    assert not masked[(~batch.response)[:, None].expand(masked.shape)].any()
    assert batch.groups.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert batch.trace.limit == 10
    assert batch.trace.blocks[0][batch.response[0]].tolist() == [0] * 4 + [1] * 4 + [2] * 2
    if not remask:
        step = torch.arange(total)[None, :, None]
        open_ = batch.response[:, None] & (batch.trace.step_map[:, None] >= step)
        assert torch.equal(masked, open_)


def test_one_call_per_function_with_each_text_once(tiny, examples):
    first, second = Counting(), Counting()
    lm = tiny("llada")
    rolled = states(
        lm, examples, reward_funcs=[first, second], reward_weights=[1.0, 0.5], decoder=replace(DECODER, temperature=0.4)
    )
    assert len(first.calls) == len(second.calls) == 1
    asked = first.calls[0]
    assert len(set(asked)) == len(asked) < 9 * 6
    batch, steps = rolled.batch, rolled.batch.trace.steps
    known = {
        (prompt, text, left): 1.5 * sum(c < "P" for c in text) / max(len(text), 1) for prompt, text, left, _ in asked
    }
    for row in range(9):
        prompt = examples[int(batch.groups[row])]["prompt"][0]["content"]
        for step in range(6):
            ids = steps.guesses[row, step][batch.response[row]].tolist()
            stop = next((place for place, token in enumerate(ids) if token in lm.stop_token_ids), 10)
            key = (prompt, lm.decode(ids[:stop]), 10 - min(stop + 1, 10))
            assert steps.rewards[row, step].item() == pytest.approx(known[key], abs=1e-6)


@pytest.mark.parametrize("make", [states, tree])
def test_results_do_not_depend_on_the_rows_of_a_forward(tiny, examples, make):
    lm = tiny("llada")
    one, two, other = make(lm, examples), make(lm, examples, batch_size=2), make(lm, examples, step=1)
    assert torch.equal(one.batch.ids, two.batch.ids)
    assert torch.equal(one.batch.rewards, two.batch.rewards)
    assert one.metrics == two.metrics
    assert (one.tokens, one.nfe, one.flops) == (two.tokens, two.nfe, two.flops)
    assert not torch.equal(one.batch.ids, other.batch.ids)


@pytest.mark.parametrize("family", FULL)
def test_trees_branch_where_they_should(tiny, examples, family):
    lm = tiny(family)
    rolled = tree(lm, examples)
    batch, found = rolled.batch, rolled.batch.trace.tree
    assert len(batch.ids) == 18
    assert len(found.parents) == 3 * (1 + 3 + 6)
    assert found.parents[:10].tolist() == [-1, 0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert found.leaf[:10].tolist() == [-1] * 4 + [0, 1, 2, 3, 4, 5]
    assert found.member[:10].tolist() == [0, 0, 2, 4, 0, 1, 2, 3, 4, 5]
    masked = found.states == lm.mask_token_id
    assert masked.sum(1)[:10].tolist() == [10] + [4] * 3 + [0] * 6
    assert torch.equal(found.states[found.leaf >= 0], batch.ids)
    assert torch.equal(found.counted[found.leaf >= 0], batch.counted)
    for node, parent in enumerate(found.parents.tolist()):
        if parent >= 0:
            kept = ~masked[parent]
            assert torch.equal(found.states[node][kept], found.states[parent][kept])
            assert batch.groups[found.member[node]] == batch.groups[found.member[parent]]
    _, family_of = children(found.parents)
    for below in family_of:  # fresh seeds: no two children alike
        own = found.states[below[below >= 0]]
        assert len(own.unique(dim=0)) == len(own)


def test_edges_are_paid_once(tiny, examples):
    lm = tiny("llada")
    rolled = tree(lm, examples)
    assert rolled.nfe == 3 * (3 * 3 + 6 * 3)
    assert rolled.tokens == 3 * (3 * 6 + 6 * 4)
    assert rolled.metrics["rollout_nfe"] == rolled.nfe / 18
    assert rolled.flops < sum(generation.cost.flops for generation in rolled.generations)
    flat = tree(lm, examples, shape=Shape(1, 6, 2))
    assert flat.flops == sum(generation.cost.flops for generation in flat.generations)
    assert (flat.nfe, flat.tokens) == (18 * 6, 180)


@pytest.mark.parametrize("family", FULL)
def test_guesses_score_as_they_were_drawn(tiny, examples, family):
    """At temperature 1 the confidence of a guess is its score in the state it was made in, Dream's shift included."""
    lm = tiny(family)
    batch = states(lm, examples).batch
    algorithm = MDPO(MDPOConfig(group_size=3, kept_steps=6))
    for rows in algorithm.rows(batch, Context(0)):
        found = replay.score_all(lm.eval(), replace(rows, temperature=1.0), 4)[..., 0]
        expected = batch.trace.steps.confidence[rows.owner, rows.draw]
        torch.testing.assert_close(found[rows.mask].exp(), expected[rows.mask], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FULL)
@pytest.mark.parametrize(
    "algorithm",
    [
        MDPO(MDPOConfig(group_size=4, kept_steps=2, temperature=0.8, beta=0.02)),
        MDPO(MDPOConfig(group_size=4, inner_iterations=2, remask=True, scored_at="one", lambda_floor="one")),
        DTreeRPO(DTreeRPOConfig(root_branches=2, branches=2, lambda_max=0.1)),
        DTreeRPO(DTreeRPOConfig(root_branches=2, branches=2, segments="parent", inner_iterations=3, beta=0.0)),
    ],
    ids=["mdpo", "mdpo-dare", "tree", "tree-segments"],
)
def test_weights_move(tiny, run, examples, family, algorithm):
    lm = tiny(family)
    before = lm.head_weight.detach().clone()
    settings = TrainConfig(steps=3, batch_size=2, micro_batch_size=5, lr=1e-3)
    done = run(lm, algorithm, settings, data=examples[:4])
    assert sorted(done.points) == [1, 2, 3]
    assert all(math.isfinite(value) for point in done.points.values() for value in point.values())
    assert done.points[1]["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert done.points[1]["clip_fraction"] == 0.0
    # A segment of the tree may hold siblings of equal value only: then its step moves nothing.
    assert max(point["grad_norm"] for point in done.points.values()) > 0
    assert not torch.equal(lm.head_weight, before)
    totals = done.result.totals
    cycles = -(-3 // algorithm.config.inner_iterations)
    if isinstance(algorithm, MDPO):
        assert totals["rollout_tokens"] == cycles * 2 * 4 * 6  # prompts x group x gen_length
        assert totals["rollout_nfe"] == cycles * 2 * 4 * 4
    else:
        assert totals["rollout_nfe"] == cycles * 2 * (2 * 2 + 4 * 2)
    assert totals["rollout_flops"] > 0


@pytest.mark.parametrize(
    "algorithm",
    [
        MDPO(MDPOConfig(group_size=4, inner_iterations=2, kept_steps=2, temperature=0.8, beta=0.02, remask=True)),
        DTreeRPO(DTreeRPOConfig(root_branches=2, branches=2, inner_iterations=2, lambda_max=0.1)),
    ],
    ids=["mdpo", "tree"],
)
def test_a_killed_run_continues_bit_for_bit(tiny, run, examples, algorithm):
    settings = TrainConfig(steps=4, batch_size=2, micro_batch_size=5, lr=1e-3, checkpoint_every=2)
    data = examples[:4]
    whole = run(tiny("llada"), algorithm, settings, data=data, out="whole")
    run(tiny("llada"), algorithm, settings, data=data, out="cut", die_at=4)
    again = run(tiny("llada"), algorithm, settings, data=data, out="cut")
    assert again.resumed == [2]
    for step, point in again.points.items():
        assert point["loss"] == whole.points[step]["loss"]
    for (name, one), (_, two) in zip(whole.lm.model.named_parameters(), again.lm.model.named_parameters(), strict=True):
        assert torch.equal(one, two), name
    assert whole.result.totals["rollout_nfe"] == again.result.totals["rollout_nfe"]


@pytest.mark.parametrize("algorithm", [MDPO(), DTreeRPO()], ids=["mdpo", "tree"])
def test_decoders_are_checked_before_the_first_rollout(tiny, run, algorithm):
    for fields, said in [
        ({"selector": "threshold", "selector_options": {"threshold": 0.9}}, "selector: 'threshold'; allowed here"),
        ({"early_stop": "fill"}, "early_stop: 'fill'; allowed here"),
        ({"cache": "dual"}, "cache: 'dual'; allowed here"),
    ]:
        with pytest.raises(ValueError, match=said):
            run(
                tiny("llada"),
                algorithm,
                TrainConfig(steps=1, batch_size=2),
                decoder=DecoderConfig(gen_length=4, **fields),
            )


def test_kinds():
    assert set(KINDS) == {"ar", "policy", "states", "tree"}
    assert kind_of(Needs(rollout="policy", trace="states")) is KINDS["states"]
    assert kind_of(Needs(rollout="policy", trace="step_map")) is kind_of(Needs(rollout="ar"))
    assert kind_of(Needs(rollout="tree")) is KINDS["tree"]
