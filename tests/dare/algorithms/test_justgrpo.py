"""JustGRPO: an exact likelihood, rows that mask exactly what is not decoded yet, the published reduction."""

from __future__ import annotations

import itertools

import pytest
import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Context, Trace
from dare_bench.dare.algorithms.justgrpo import JustGRPO, JustGRPOConfig
from dare_bench.dare.diffusion.block import concatenate
from dare_bench.dare.training import replay
from dare_bench.dare.training.replay import score

PROMPTS, RESPONSES = [3, 5, 4, 6, 3, 3], [7, 7, 7, 7, 7, 7]
REWARDS, GROUPS = [1.0, 0.0, 0.5, 0.5, 0.0, 2.0], [0, 0, 1, 1, 2, 2]


def traced(make_batch, block_length=0, **options):
    """Graded responses, decoded from left to right; those of the second prompt have equal rewards."""
    fields = {"rewards": REWARDS, "groups": GROUPS} | options
    batch = make_batch(PROMPTS, RESPONSES, block_length=block_length, **fields)
    batch.trace = Trace(torch.where(batch.response, torch.arange(batch.ids.shape[1]), -1))
    return batch


def rows_of(batch, **options):
    return concatenate(list(JustGRPO(JustGRPOConfig(**options)).rows(batch, Context(0))))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_probabilities_of_all_responses_sum_to_one(plain_model, make_batch, length, temperature):
    vocab = 3
    found = list(itertools.product(range(vocab), repeat=length))
    batch = make_batch([2] * len(found), [length] * len(found), rewards=[float(index) for index in range(len(found))],
                       groups=[0] * len(found))  # fmt: skip
    batch.ids[:, :2] = torch.tensor([0, 1])
    batch.ids[:, 2:] = torch.tensor(found)
    batch.trace = Trace(torch.where(batch.response, 0, -1))
    batch.mask_token_id = vocab
    # One token more than can be chosen would take probability: the mask's logit is no choice of this network.
    lm = plain_model(vocab + 1)
    with torch.no_grad():
        lm.head.weight[vocab] = -1e4 * torch.ones(8)
        lm.embedding += 1.0
        lm.embedding.abs_()
    rows = rows_of(batch, temperature=temperature, advantage="mean", group_size=2)
    moving = sorted(set(rows.owner.tolist()))
    missing = [index for index in range(len(found)) if index not in moving]
    assert len(missing) <= 1  # the response whose reward is the mean
    logp = torch.zeros(len(found), dtype=torch.float64).index_add(
        0, rows.owner, score(lm, rows).detach()[..., 0].sum(1)
    )
    for index in missing:
        ids = torch.full((1, 2 + length), vocab)
        ids[0, :2] = torch.tensor([0, 1])
        for place, token in enumerate(found[index]):
            logp[index] += (lm.logits(ids) / temperature).detach().log_softmax(-1)[0, 2 + place, token]
            ids[0, 2 + place] = token
    assert float(logp.exp().sum()) == pytest.approx(1.0, abs=1e-9)
    assert logp.exp().max() < 0.999


class TestRows:
    def test_row_t_masks_exactly_t_and_what_follows(self, make_batch):
        batch = traced(make_batch)
        rows = rows_of(batch, position_chunk=2)
        assert len(rows) == 4 * 7  # those of the second prompt do not move the policy
        for index in range(len(rows)):
            owner, t = int(rows.owner[index]), int(batch.prompt_lengths[rows.owner[index]] + rows.draw[index])
            places = torch.arange(batch.ids.shape[1])
            hidden = batch.response[owner] & (places >= t)
            assert torch.equal(rows.ids[index] == batch.mask_token_id, hidden)
            assert torch.equal(rows.ids[index][~hidden], batch.ids[owner][~hidden])
            assert rows.mask[index].nonzero()[:, 0].tolist() == [t]

    def test_rows_are_made_in_position_chunks(self, make_batch):
        parts = list(JustGRPO(JustGRPOConfig(position_chunk=3)).rows(traced(make_batch), Context(0)))
        assert [sorted(set(part.draw.tolist())) for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]

    def test_blocks_of_block_families_share_rows(self, tiny, make_batch):
        batch, lm = traced(make_batch, 4), tiny("sdar")
        rows = rows_of(batch)
        assert torch.bincount(rows.owner).tolist() == [4, 4, 0, 0, 4, 4]
        found = torch.zeros(6, dtype=torch.float64).index_add(0, rows.owner, score(lm, rows).detach()[..., 0].sum(1))
        for row in (0, 1, 4, 5):
            total = 0.0
            for place in range(PROMPTS[row], PROMPTS[row] + RESPONSES[row]):
                end = min((place // 4 + 1) * 4, PROMPTS[row] + RESPONSES[row])
                ids = batch.ids[row : row + 1, :end].clone()
                ids[0, place:] = batch.mask_token_id
                logits = lm.logits(ids, mask="block_causal", block_length=4)[0, place].detach().log_softmax(-1)
                total += float(logits[batch.ids[row, place]])
            assert float(found[row]) == pytest.approx(total, abs=1e-9)

    def test_tokens_that_were_never_chosen_do_not_count(self, make_batch):
        batch = traced(make_batch, counted=[3] * 6)
        batch.trace.step_map[0, 8:] = -1
        assert int(rows_of(batch).mask[rows_of(batch).owner == 0].sum()) == 5
        assert int(rows_of(batch, counted="eos").mask[rows_of(batch, counted="eos").owner == 0].sum()) == 3


class TestLoss:
    def gradient(self, lm, batch, micro_rows=None, **options):
        algorithm = JustGRPO(JustGRPOConfig(**options))
        lm.model.zero_grad()
        metrics = replay.backward(
            lm,
            algorithm,
            algorithm.rows(batch, Context(0)),
            algorithm.advantages(batch),
            Context(0),
            micro_rows=micro_rows,
        )
        found = [weight.grad.clone() for weight in lm.model.parameters() if weight.grad is not None]
        lm.model.zero_grad()
        return metrics, found

    @pytest.mark.parametrize("reduction", ["responses", "token-mean"])
    @pytest.mark.parametrize("block_length", [0, 4])
    def test_chunks_change_nothing(self, tiny, make_batch, block_length, reduction):
        lm, batch = tiny("sdar" if block_length else "llada"), traced(make_batch, block_length)
        metrics, wanted = self.gradient(lm, batch, reduction=reduction)
        for chunk, micro_rows in ((1, None), (3, 2), (100, 5)):
            other, found = self.gradient(lm, batch, micro_rows, position_chunk=chunk, reduction=reduction)
            assert other["loss"] == pytest.approx(metrics["loss"], abs=1e-9)
            for one, two in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-10)

    def test_gradient_at_the_logits(self, make_batch):
        """-scale A (onehot - p) / T at the scored position, 0 elsewhere."""
        batch = traced(make_batch)
        algorithm = JustGRPO(JustGRPOConfig(temperature=0.5))
        rows, advantages = rows_of(batch, temperature=0.5), algorithm.advantages(batch)
        logits = torch.randn(*rows.ids.shape, 64, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
        logp = (logits / rows.temperature).log_softmax(-1).gather(-1, rows.targets)
        new = torch.where(rows.mask[..., None], logp, 0.0)
        loss, metrics = algorithm.loss(new, None, None, rows, advantages, Context(0))
        loss.backward()
        scale = 1 / (7 * (4 + 1e-5))
        p = (logits.detach() / 0.5).softmax(-1)
        one = torch.nn.functional.one_hot(rows.targets[..., 0], 64)
        wanted = -scale * advantages[rows.owner][:, None, None] * (one - p) / 0.5
        torch.testing.assert_close(logits.grad, torch.where(rows.mask[..., None], wanted, 0.0))
        assert metrics["ratio_mean"] == 1.0

    def test_a_causal_model_gives_the_autoregressive_policy_gradient(self, plain_model, make_batch):
        lm = plain_model(64, causal=True)
        batch = make_batch([3] * 4, [5] * 4, rewards=[1.0, 0.0, 3.0, 0.5], groups=[0] * 4)
        batch.trace = Trace(torch.where(batch.response, 0, -1))
        algorithm = JustGRPO(JustGRPOConfig(group_size=4))
        rows = rows_of(batch)
        advantages = algorithm.advantages(batch)
        loss, _ = algorithm.loss(score(lm, rows), None, None, rows, advantages, Context(0))
        found = torch.autograd.grad(loss, [lm.embedding, lm.head.weight])
        logp = lm.logits(batch.ids).log_softmax(-1).gather(-1, batch.ids[..., None])[..., 0]
        plain = -(advantages[:, None] * logp * batch.response).sum() / (5 * (4 + 1e-5))
        wanted = torch.autograd.grad(plain, [lm.embedding, lm.head.weight])
        for one, two in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, two)

    def test_reductions(self, make_batch):
        batch = traced(make_batch)
        one = rows_of(batch)
        assert one.weight[one.mask].tolist() == pytest.approx([1 / (7 * (4 + 1e-5))] * 28)
        each = rows_of(batch, mean_over=1)
        assert each.weight[each.mask].tolist() == pytest.approx([1 / (7 * (2 + 1e-5))] * 28)
        pairs = rows_of(batch, mean_over=2)  # prompts 0 and 1, of which one moves; prompt 2
        assert pairs.weight[pairs.mask].tolist() == pytest.approx([1 / (7 * (2 + 1e-5))] * 28)
        tokens = rows_of(batch, reduction="token-mean")
        assert tokens.weight[tokens.mask].tolist() == pytest.approx([1 / 42] * 28)
        assert len(rows_of(batch, reduction="token-mean", beta=0.1)) == 42  # a KL is of every response

    def test_advantages(self, make_batch):
        batch = traced(make_batch)
        found = JustGRPO().advantages(batch)
        assert found.tolist() == pytest.approx([0.5 / (0.5**0.5 + 1e-4), -0.5 / (0.5**0.5 + 1e-4), 0.0, 0.0,
                                                -1 / (2**0.5 + 1e-4), 1 / (2**0.5 + 1e-4)])  # fmt: skip
        assert JustGRPO(JustGRPOConfig(delta=0.0)).advantages(batch)[0] == pytest.approx(0.5**0.5)


class TestSettings:
    def test_presets_and_families(self):
        entry = registry.get("justgrpo")
        configs = {name: entry.config_class(**options) for name, options in entry.presets.items()}
        assert sorted(configs) == ["dare", "paper", "repo"]
        assert (configs["repo"].group_size, configs["repo"].mean_over, configs["repo"].temperature) == (16, 8, 1.0)
        assert (configs["dare"].reduction, configs["dare"].dual_clip, configs["dare"].delta) == (
            "token-mean",
            3.0,
            1e-6,
        )
        assert (entry.needs.rollout, entry.cls.separable) == ("ar", True)
        assert "llada" in entry.families

    @pytest.mark.parametrize(
        "options",
        [{"temperature": 0.0}, {"reduction": "sum"}, {"mean_over": -1}, {"position_chunk": 0}, {"delta": -1.0}],
    )
    def test_refused(self, options):
        with pytest.raises(ValueError, match=rf"{next(iter(options))}: .*allowed"):
            JustGRPOConfig(**options)
