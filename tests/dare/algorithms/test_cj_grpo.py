"""CJ-GRPO: every token in the state it was chosen in, means over steps, block-parallel replay."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.algorithms import policy, registry, trajectories
from dare_bench.dare.algorithms.base import Context, Trace
from dare_bench.dare.algorithms.cj_grpo import CJGRPO, CJGRPOConfig
from dare_bench.dare.algorithms.d1 import D1, D1Config
from dare_bench.dare.diffusion.block import concatenate
from dare_bench.dare.training import replay
from dare_bench.dare.training.replay import score

PROMPTS, RESPONSES, COUNTED = [3, 5, 4, 6], [8, 6, 7, 8], [8, 2, 7, 5]
REWARDS, GROUPS = [1.0, 0.0, 0.5, 0.25], [0, 0, 1, 1]


def traced(make_batch, block_length=0, *, high=4, low=0, seed=0):
    """Graded responses with random step maps from `low` to `high`."""
    batch = make_batch(PROMPTS, RESPONSES, counted=COUNTED, block_length=block_length, rewards=REWARDS, groups=GROUPS)
    generator = torch.Generator().manual_seed(seed)
    steps = torch.stack(
        [torch.randint(low, high + 1, (20,), generator=generator)[: batch.ids.shape[1]] for _ in batch.ids]
    )
    batch.trace = Trace(torch.where(batch.response, steps, -1))
    return batch


def rows_of(batch, config=None):
    return concatenate(list(CJGRPO(config).rows(batch, Context(0))))


def outcome(lm, batch, algorithm, *, shift=0.0):
    """Loss, metrics and gradient in one piece; the old policy gave each token exp(shift) times the probability."""
    rows = rows_of(batch, algorithm.config)
    new = score(lm, rows)
    advantages = algorithm.advantages(batch)
    old = new.detach() + shift * rows.mask[..., None]
    loss, metrics = algorithm.loss(new, old, None, rows, advantages, Context(0))
    weights = [weight for weight in lm.model.parameters() if weight.requires_grad]
    gradient = torch.autograd.grad(loss, weights, allow_unused=True)
    return loss.detach(), metrics, gradient


@pytest.fixture(params=[0, 4], ids=["full", "blocks"])
def case(request, tiny, make_batch):
    return tiny("sdar" if request.param else "llada"), traced(make_batch, request.param)


class TestRows:
    @pytest.mark.parametrize("block_length", [0, 4])
    def test_every_chosen_token_is_scored_once(self, make_batch, block_length):
        batch = traced(make_batch, block_length, low=-1)
        for config, counted in ((CJGRPOConfig(), batch.response), (CJGRPOConfig(counted="eos"), batch.counted)):
            rows = rows_of(batch, config)
            seen = torch.zeros_like(batch.ids)
            owner, column = rows.mask.nonzero(as_tuple=True)
            place = (rows.owner[owner], rows.position_ids[owner, column])
            seen.index_put_(place, torch.ones_like(owner), accumulate=True)
            assert torch.equal(seen, (counted & (batch.trace.step_map >= 0)).long())
            assert float(torch.where(rows.mask, rows.weight, 0.0).sum()) == pytest.approx(1.0)

    def test_means_over_tokens_then_steps(self, make_batch):
        batch = traced(make_batch)
        batch.trace.step_map = torch.where(
            batch.response, batch.trace.step_map * 2, -1
        )  # odd forwards committed nothing
        rows = rows_of(batch)
        ranks = trajectories.step_ranks(batch.trace.step_map)
        count = int(ranks.max()) + 1
        values = torch.randn(len(rows), rows.ids.shape[1], generator=torch.Generator().manual_seed(1)).double()
        by_steps = sum(float(values[rows.draw == step][rows.mask[rows.draw == step]].mean()) for step in range(count))
        assert float(policy.weighted_sum(values, rows)) == pytest.approx(by_steps / count)

    def test_steps_without_a_counted_token_are_no_steps(self, make_batch):
        batch = make_batch([2], [4], counted=[2], rewards=[1.0])
        batch.trace = Trace(torch.tensor([[-1, -1, 0, 1, 2, 3]]))
        rows = rows_of(batch, CJGRPOConfig(counted="eos"))
        assert rows.draw.tolist() == [0, 1]
        assert rows.weight[rows.mask].tolist() == [0.5, 0.5]
        assert rows_of(batch).draw.tolist() == [0, 1, 2, 3]

    def test_merging_makes_one_row_per_block(self, make_batch):
        batch = traced(make_batch)
        batch.trace.blocks = (torch.arange(batch.ids.shape[1]) - batch.prompt_lengths[:, None]).clamp(min=0) // 4
        steps = batch.trace.blocks * 10 + batch.trace.step_map  # blocks were decoded one after the other
        batch.trace.step_map = torch.where(batch.response, steps, -1)
        rows = rows_of(batch, CJGRPOConfig(merge=0))
        assert torch.bincount(rows.owner).tolist() == [2] * 4
        for index in range(len(rows)):
            owner = int(rows.owner[index])
            own = batch.response[owner] & (batch.trace.blocks[owner] == rows.draw[index])
            behind = batch.response[owner] & (batch.trace.blocks[owner] > rows.draw[index])
            assert torch.equal(rows.mask[index], own)
            assert torch.equal(rows.ids[index] == batch.mask_token_id, own | behind)
        two = rows_of(batch, CJGRPOConfig(merge=2))
        assert len(rows) < len(two) < len(rows_of(batch))

    def test_merged_blocks_of_block_families_are_one_row(self, make_batch):
        batch = traced(make_batch, 4)
        rows = rows_of(batch, CJGRPOConfig(merge=0))
        assert rows.owner.tolist() == [0, 1, 2, 3]
        d1 = concatenate(list(D1(D1Config(prompt_mask=0.0, counted="canvas")).rows(batch, Context(0))))
        assert torch.equal(rows.ids, d1.ids)
        assert torch.equal(rows.mask, d1.mask)


class TestLoss:
    def test_all_tokens_at_once_are_d1_without_a_prompt_mask(self, tiny, make_batch):
        batch = traced(make_batch)
        batch.trace.step_map = torch.where(batch.response, 0, -1)
        lm = tiny("llada")
        loss, _, gradient = outcome(lm, batch, CJGRPO(CJGRPOConfig(dual_clip=3.0)), shift=0.1)
        surrogate = D1(D1Config(prompt_mask=0.0, counted="canvas", dual_clip=3.0))
        (rows,) = surrogate.rows(batch, Context(0))
        new = score(lm, rows)
        old = new.detach() + 0.1 * rows.mask[..., None]
        expected, _ = surrogate.loss(new, old, None, rows, surrogate.advantages(batch), Context(0))
        assert float(loss) == pytest.approx(float(expected.detach()), abs=1e-12)
        wanted = torch.autograd.grad(expected, list(lm.model.parameters()), allow_unused=True)
        for one, two in zip(gradient, wanted, strict=True):
            torch.testing.assert_close(one, two)

    def test_left_to_right_on_a_causal_model_is_the_autoregressive_likelihood(self, plain_model, make_batch):
        lm = plain_model(64, causal=True)
        batch = make_batch([3, 3], [5, 5], rewards=[1.0, 0.0], groups=[0, 0])
        order = torch.arange(8).expand(2, 8)
        batch.trace = Trace(torch.where(batch.response, order, -1))
        rows = rows_of(batch)
        found = score(lm, rows)[..., 0].sum(1)
        total = torch.zeros(2, dtype=torch.float64).index_add(0, rows.owner, found)
        likelihood = lm.logits(batch.ids).log_softmax(-1).gather(-1, batch.ids[..., None])[..., 0]
        torch.testing.assert_close(total, (likelihood * batch.response).sum(1))

    def test_each_token_is_scored_in_its_own_state(self, tiny, make_batch):
        lm, batch = tiny("llada"), traced(make_batch)
        rows, steps = rows_of(batch), trajectories.step_ranks(batch.trace.step_map)
        found = score(lm, rows).detach()[..., 0].sum(1)
        for index in range(len(rows)):
            owner, step = int(rows.owner[index]), int(rows.draw[index])
            when, ids = steps[owner], batch.ids[owner].clone()
            ids[batch.response[owner] & (when >= step)] = batch.mask_token_id
            logits = lm.logits(ids[None, : int(batch.lengths[owner])], mask="full")[0].detach().log_softmax(-1)
            own = (when == step).nonzero()[:, 0]
            assert float(found[index]) == pytest.approx(float(logits[own, batch.ids[owner, own]].sum()), abs=1e-9)

    @pytest.mark.parametrize("micro_rows", [1, 3, None])
    def test_backward_step_by_step_is_one_backward(self, case, micro_rows):
        lm, batch = case
        algorithm = CJGRPO(CJGRPOConfig(advantage="mean"))
        loss, metrics, gradient = outcome(lm, batch, algorithm)
        lm.model.zero_grad()
        found = replay.backward(
            lm,
            algorithm,
            algorithm.rows(batch, Context(0)),
            algorithm.advantages(batch),
            Context(0),
            micro_rows=micro_rows,
        )
        assert found["loss"] == pytest.approx(float(loss), abs=1e-9)
        assert found["ratio_mean"] == pytest.approx(metrics["ratio_mean"])
        assert any(wanted.abs().max() > 1e-4 for wanted in gradient if wanted is not None)
        for weight, wanted in zip(lm.model.parameters(), gradient, strict=True):
            if wanted is not None:
                torch.testing.assert_close(weight.grad, wanted, atol=1e-9, rtol=1e-6)
        lm.model.zero_grad()


class TestSettings:
    def test_presets_and_families(self):
        entry = registry.get("cj_grpo")
        assert entry.families == {"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"}
        configs = {name: entry.config_class(**options) for name, options in entry.presets.items()}
        assert sorted(configs) == ["dare", "paper", "repo"]
        assert all(config.counted == "canvas" for config in configs.values())
        assert (configs["repo"].beta, configs["repo"].inner_iterations, configs["repo"].eps_low) == (0.04, 12, 0.5)
        assert (configs["dare"].advantage, configs["dare"].dual_clip) == ("std", 3.0)
        assert entry.train_presets["repo"]["lr"] == 3e-6

    def test_refused(self):
        with pytest.raises(ValueError, match=r"merge: -1; allowed: at least 0"):
            CJGRPOConfig(merge=-1)
        with pytest.raises(ValueError, match=r"counted: 'all'; allowed: eos, canvas"):
            CJGRPOConfig(counted="all")
        assert CJGRPO().needs.ref == "none"
        assert CJGRPO(CJGRPOConfig(beta=0.1)).needs.ref == "frozen"
