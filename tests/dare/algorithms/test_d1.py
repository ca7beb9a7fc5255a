"""d1: the executed reference, and the laws of its surrogate under full and block-causal attention."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Batch, Context
from dare_bench.dare.algorithms.d1 import D1, D1Config
from dare_bench.dare.algorithms.objectives import token_logps
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.replay import score

MASK = 63
PROMPTS, RESPONSES, COUNTED = [3, 5, 4, 6, 2, 7], [8, 5, 6, 4, 7, 3], [8, 2, 6, 4, 1, 3]
REWARDS = [1.0, 0.0, 0.5, 0.25, 1.0, 0.0]


def rows_of(batch, config=None, **context):
    (rows,) = D1(config).rows(batch, Context(**({"run_seed": 0} | context)))
    return rows


@pytest.fixture(params=[0, 4], ids=["full", "blocks"])
def case(request, tiny, make_batch):
    """A model of either kind and a graded batch for it."""
    lm = tiny("sdar" if request.param else "llada")
    batch = make_batch(PROMPTS, RESPONSES, counted=COUNTED, block_length=request.param, rewards=REWARDS,
                       groups=[0, 0, 0, 1, 1, 1])  # fmt: skip
    return lm, batch


class TestReferenceRun:
    @pytest.mark.parametrize("index", range(3))
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_loss_gradient_and_metrics(self, oracle, index, dtype):
        data = oracle("d1_diffu_grpo")
        case = data["cases"][index]
        prompt, completion = torch.tensor(data["prompt_ids"]), torch.tensor(data["completion_ids"])
        ids, width = torch.cat([prompt, completion], 1), data["prompt_len"]
        counted = torch.cat([torch.zeros_like(prompt), torch.tensor(data["completion_mask"])], 1).bool()
        batch = Batch(
            ids=ids,
            prompt_lengths=torch.full((6,), width),
            lengths=torch.full((6,), ids.shape[1]),
            counted=counted,
            sample_ids=["a"] * 3 + ["b"] * 3,
            groups=torch.arange(6) // data["group_size"],
            mask_token_id=data["mask_id"],
            eos_token_id=data["eos_id"],
            rewards=torch.tensor(data["rewards"], dtype=dtype),
        )
        algorithm = D1(D1Config(beta=case["beta"], eps_low=case["epsilon"]))
        inner = case["inner_index"]
        rows = rows_of(batch, algorithm.config, inner=inner)
        assert torch.equal(rows.mask, counted)
        assert torch.equal(rows.ids[:, width:], torch.tensor(data["noisy_input_ids"])[inner][:, width:])

        def per_token(logits):
            found = ids.new_zeros(ids.shape, dtype=dtype)
            return torch.where(counted[:, width:], token_logps(logits, completion), found[:, width:])

        def widen(values):
            return torch.cat([values.new_zeros(6, width), values], 1)[..., None]

        policy = torch.tensor(case["policy_logits"], dtype=dtype, requires_grad=True)
        old, ref = (per_token(torch.tensor(data[name][inner], dtype=dtype)) for name in ("old_logits", "ref_logits"))
        new = per_token(policy)
        exact = {"atol": 1e-6 if dtype == torch.float64 else 2e-5, "rtol": 0 if dtype == torch.float64 else 1e-5}
        keep = counted[:, width:]
        for values, expected in (
            (new.detach(), case["expected_per_token_logps"]),
            (old, data["expected_old_per_token_logps"][inner]),
            (ref, data["expected_ref_per_token_logps"][inner]),
        ):
            torch.testing.assert_close(values[keep], torch.tensor(expected, dtype=dtype)[keep], atol=2e-5, rtol=1e-5)
        advantages = algorithm.advantages(batch)
        torch.testing.assert_close(advantages, torch.tensor(data["advantages"], dtype=dtype), **exact)
        loss, metrics = algorithm.loss(widen(new), widen(old), widen(ref), rows, advantages, Context(0))
        loss.backward()
        field = "expected_loss_f64" if dtype == torch.float64 else "expected_loss_official_f32"
        torch.testing.assert_close(loss.detach(), torch.tensor(case[field], dtype=dtype), **exact)
        gradient = torch.tensor(case["expected_grad_wrt_policy_logits_completion"], dtype=dtype)
        torch.testing.assert_close(policy.grad, gradient, atol=1e-5, rtol=0)
        # The reference counts "unclipped < clipped objective": tokens outside the range where clipping does NOT act
        # (a known slip of the trainer it derives from). Ours counts those where it acts; together: all outside.
        ratio, width_of = (new.detach() - old).exp()[keep], case["epsilon"]
        advantage = advantages[:, None].expand(keep.shape)[keep]
        unbounded = ratio * advantage < ratio.clamp(1 - width_of, 1 + width_of) * advantage
        assert float(unbounded.double().mean()) == pytest.approx(case["expected_clip_ratio"], abs=1e-6)
        outside = ((ratio - 1).abs() > width_of) & (advantage != 0)
        assert metrics["clip_fraction"] == pytest.approx(float((outside & ~unbounded).double().mean()), abs=1e-6)
        if case["beta"]:
            assert metrics["kl"] == pytest.approx(case["expected_mean_kl"], abs=2e-5)
        else:
            assert "kl" not in metrics


class TestLaws:
    """Laws every implementation of d1 obeys."""

    def gradient(self, lm, batch, algorithm, *, old=None, ref=None, advantages=None):
        rows = rows_of(batch, algorithm.config)
        new = score(lm, rows)
        values = algorithm.advantages(batch) if advantages is None else advantages
        loss, metrics = algorithm.loss(new, old, ref, rows, values, Context(0))
        return loss, metrics, torch.autograd.grad(loss, list(lm.model.parameters()), allow_unused=True)

    def test_a_zero_advantage_is_zero_loss_and_gradient(self, case):
        lm, batch = case
        batch.rewards = torch.full((6,), 0.7)
        loss, _, gradient = self.gradient(lm, batch, D1())
        assert float(loss.detach()) == 0.0
        assert all(not part.any() for part in gradient if part is not None)

    def test_b_ratio_is_one_at_the_first_inner_step(self, case):
        lm, batch = case
        algorithm = D1(D1Config(beta=0.5))
        rows = rows_of(batch)
        with torch.no_grad():
            old = score(lm, rows)
        ref = old - 0.3 * rows.mask[..., None].double()
        loss, metrics, _ = self.gradient(lm, batch, algorithm, old=old, ref=ref)
        counted = torch.tensor(COUNTED, dtype=torch.float64)
        policy = -(algorithm.advantages(batch) * counted).sum() / counted.sum()
        k3 = math.exp(-0.3) + 0.3 - 1
        assert float(loss.detach()) == pytest.approx(float(policy) + 0.5 * k3, abs=1e-7)
        assert metrics["ratio_mean"] == 1.0
        assert metrics["clip_fraction"] == 0.0
        assert metrics["kl"] == pytest.approx(k3)

    def test_c_prompt_positions_and_g_tokens_behind_the_end_are_not_scored(self, case):
        lm, batch = case
        rows = rows_of(batch)
        new = score(lm, rows)
        assert not new[~rows.mask].any()
        assert rows.mask.sum(1).tolist() == COUNTED
        noise = new + torch.where(rows.mask[..., None], 0.0, 5.0)  # whatever stands there does not enter the loss
        plain = D1().loss(new, None, None, rows, D1().advantages(batch), Context(0))[0]
        other = D1().loss(noise, None, None, rows, D1().advantages(batch), Context(0))[0]
        assert float(plain.detach()) == float(other.detach())
        leaf = new.detach().requires_grad_()
        D1().loss(leaf, leaf.detach(), None, rows, D1().advantages(batch), Context(0))[0].backward()
        assert not leaf.grad[~rows.mask].any()

    def test_d_mask_law(self, make_batch):
        batch = make_batch([20] * 500, [5] * 500)
        rows = rows_of(batch, D1Config(prompt_mask=0.3))
        assert (rows.ids[:, 20:] == MASK).all()
        share = float((rows.ids[:, :20] == MASK).double().mean())
        assert abs(share - 0.3) < 3 * math.sqrt(0.3 * 0.7 / 10_000)

    def test_e_same_seed_same_rows(self, case):
        batch = case[1]
        config = D1Config(prompt_mask=0.5)
        first = rows_of(batch, config, inner=1)
        again = rows_of(batch, config, inner=1)
        source = "context" if batch.block_length else "ids"
        assert torch.equal(getattr(first, source), getattr(again, source))
        for change in ({"inner": 2}, {"inner": 1, "step": 1}, {"inner": 1, "run_seed": 1}):
            assert not torch.equal(getattr(first, source), getattr(rows_of(batch, config, **change), source))

    def test_members_of_a_group_have_masks_of_their_own(self, make_batch):
        batch = make_batch([30] * 3, [4] * 3, sample_ids=["same"] * 3)
        batch.ids = batch.ids[:1].expand(3, -1)
        rows = rows_of(batch, D1Config(prompt_mask=0.5))
        assert len({tuple(row) for row in rows.ids.tolist()}) == 3

    @pytest.mark.parametrize("kind", ["k2", "k3"])
    def test_f_no_kl_to_itself(self, case, kind):
        lm, batch = case
        batch.rewards = torch.zeros(6)
        with torch.no_grad():
            ref = score(lm, rows_of(batch))
        loss, metrics, gradient = self.gradient(lm, batch, D1(D1Config(beta=1.0, kl=kind)), ref=ref)
        assert float(loss.detach()) == 0.0
        assert metrics["kl"] == 0.0
        assert all(part.abs().max() < 1e-12 for part in gradient if part is not None)

    def test_h_equal_lengths_make_both_reductions_equal(self, case):
        lm, batch = case
        columns = torch.arange(batch.ids.shape[1])
        batch.counted = batch.response & (columns < batch.prompt_lengths[:, None] + 3)
        values = [
            float(self.gradient(lm, batch, D1(D1Config(aggregation=mode)))[0].detach())
            for mode in ("token-mean", "seq-mean-token-mean")
        ]
        assert values[0] == pytest.approx(values[1], abs=1e-12)

    def test_an_uncounted_response_changes_nothing(self, case, make_batch):
        """Advantages given, a seventh response without counted tokens leaves loss and gradient as they are."""
        lm, batch = case
        more = make_batch([*PROMPTS, 3], [*RESPONSES, 5], counted=[*COUNTED, 0], block_length=batch.block_length,
                          rewards=[*REWARDS, 9.0], groups=[0, 0, 0, 1, 1, 1, 2])  # fmt: skip
        assert torch.equal(more.ids[:6], batch.ids)
        loss, _, gradient = self.gradient(lm, batch, D1())
        other, _, changed = self.gradient(lm, more, D1())
        assert float(other.detach()) == pytest.approx(float(loss.detach()), abs=1e-12)
        for one, two in zip(gradient, changed, strict=True):
            torch.testing.assert_close(one, two)

    @pytest.mark.parametrize("difference", [-50.0, 50.0])
    def test_extreme_ratios_are_finite(self, case, difference):
        _, batch = case
        rows = rows_of(batch)
        new = torch.where(rows.mask[..., None], -60.0, 0.0).requires_grad_()
        old = ref = new.detach() - difference * rows.mask[..., None]
        algorithm = D1(D1Config(beta=0.1, dual_clip=3.0))
        loss, metrics = algorithm.loss(new, old, ref, rows, algorithm.advantages(batch), Context(0))
        loss.backward()
        assert torch.isfinite(loss)
        assert torch.isfinite(new.grad).all()
        assert all(math.isfinite(value) for value in metrics.values())


class TestBlockFamilies:
    def test_blocks_are_fully_masked_given_clean_earlier_ones(self, make_batch):
        batch = make_batch([6, 3], [10, 9], block_length=4)
        rows = rows_of(batch, D1Config(prompt_mask=0.0))
        assert rows.layout == "noisy_clean"
        assert torch.equal(rows.context, batch.ids)
        for row, (prompt, length) in enumerate(((6, 16), (3, 12))):
            places = rows.position_ids[row]
            assert int(places[0]) == prompt // 4 * 4  # the grid starts at position 0
            response = rows.real[row] & (places >= prompt)
            assert (rows.ids[row][response] == MASK).all()
            ahead = rows.real[row] & (places < prompt)
            assert torch.equal(rows.ids[row][ahead], batch.ids[row, places[ahead]])
            assert int(places[rows.real[row]].max()) == length - 1

    def test_prompt_tokens_are_masked_in_the_clean_half_and_in_the_partial_block(self, make_batch):
        batch = make_batch([6], [6], block_length=4)
        rows = rows_of(batch, D1Config(prompt_mask=1.0))
        assert (rows.context[0, :6] == MASK).all()
        assert torch.equal(rows.context[0, 6:], batch.ids[0, 6:])
        assert (rows.ids[0][rows.real[0]] == MASK).all()
        half = rows_of(make_batch([60], [6], block_length=4), D1Config(prompt_mask=0.5))
        hidden = half.context[0, :60] == MASK
        assert 15 < int(hidden.sum()) < 45
        assert half.position_ids[0, 0] == 60

    def test_partial_block_and_clean_half_hide_the_same_tokens(self, make_batch):
        batch = make_batch([7] * 50, [5] * 50, block_length=4)
        rows = rows_of(batch, D1Config(prompt_mask=0.5))
        assert torch.equal(rows.ids[:, :3], rows.context[:, 4:7])
        assert len({tuple(row) for row in (rows.ids[:, :3] == MASK).tolist()}) > 4

    def test_equals_the_likelihood_of_each_block_in_a_forward_of_its_own(self, tiny, make_batch):
        lm = tiny("sdar")
        batch = make_batch([6, 3, 8], [10, 9, 4], block_length=4)
        rows = rows_of(batch, D1Config(prompt_mask=0.0))
        found = score(lm, rows).sum((1, 2))
        for row in range(3):
            prompt, length = int(batch.prompt_lengths[row]), int(batch.lengths[row])
            total = 0.0
            for start in range(prompt // 4 * 4, length, 4):
                ids = batch.ids[row : row + 1, : start + 4].clone()
                own = torch.arange(max(start, prompt), min(start + 4, length))
                targets = ids[0, own].clone()
                ids[0, own] = MASK
                logits = lm.logits(ids, mask="block_causal", block_length=4)[0, own]
                total += float(logits.detach().log_softmax(-1).gather(-1, targets[:, None]).sum())
            assert float(found[row]) == pytest.approx(total, abs=1e-9)


class TestSettings:
    @pytest.mark.parametrize(
        "options",
        [{"prompt_mask": 1.5}, {"eps_low": -0.1}, {"beta": -1}, {"group_size": 0}, {"inner_iterations": 0},
         {"advantage": "zscore"}, {"kl": "k4"}, {"aggregation": "mean"}, {"advantage": "std", "group_size": 1}],
    )  # fmt: skip
    def test_refused(self, options):
        name = next(iter(options))
        with pytest.raises(ValueError, match=rf"{name}.*allowed"):
            D1Config(**options)

    def test_a_reference_is_scored_only_with_a_kl(self):
        assert D1().needs.ref == "none"
        assert D1(D1Config(beta=0.1)).needs.ref == "frozen"

    def test_presets_are_valid(self):
        entry = registry.get("d1")
        configs = {name: entry.config_class(**options) for name, options in entry.presets.items()}
        repo, dare = configs["repo"], configs["dare"]
        assert (repo.group_size, repo.inner_iterations, repo.eps_low, repo.beta) == (6, 12, 0.5, 0.04)
        assert (repo.advantage, repo.aggregation, repo.prompt_mask, repo.temperature) == (
            "mean",
            "token-mean",
            0.15,
            0.9,
        )
        assert (dare.group_size, dare.inner_iterations, dare.eps_low, dare.dual_clip) == (8, 1, 0.2, 3.0)
        assert (dare.advantage, dare.aggregation, dare.counted, dare.beta) == ("std", "token-mean", "canvas", 0.0)
        # The paper divides by the length of each response, its code by the tokens of the batch; all else is one.
        assert replace(configs["paper"], aggregation="token-mean") == repo
        assert {name: TrainConfig(**found).lr for name, found in entry.train_presets.items()} == {
            "paper": 3e-6, "repo": 3e-6, "dare": 5e-7,
        }  # fmt: skip

    def test_the_counted_option(self, make_batch):
        batch = make_batch([3, 5], [8, 5], counted=[4, 2])
        assert torch.equal(rows_of(batch, D1Config(counted="eos")).mask, batch.counted)
        assert torch.equal(rows_of(batch, D1Config(counted="canvas")).mask, batch.response)
