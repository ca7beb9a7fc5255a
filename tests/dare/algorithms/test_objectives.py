"""Losses and advantages as pure functions, against executed reference code and by property."""

from __future__ import annotations

import math

import pytest
import torch
from dare_bench.dare.algorithms.advantages import group_advantages
from dare_bench.dare.algorithms.objectives import (
    AGGREGATIONS,
    SFT_NORMS,
    aggregate,
    kl,
    ppo_token_loss,
    sft_weights,
    token_logps,
)
from dare_bench.dare.algorithms.options import ClipOptions
from dare_bench.dare.algorithms.policy import clipped_responses, clipped_tokens
from hypothesis import given
from hypothesis import strategies as st

TOLERANCE = {torch.float64: {"atol": 1e-6, "rtol": 0.0}, torch.float32: {"atol": 2e-5, "rtol": 1e-5}}


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request):
    return request.param


class TestReferenceValues:
    @pytest.mark.parametrize("mode", AGGREGATIONS)
    def test_dual_clipped_policy_loss(self, oracle, dtype, mode):
        case = oracle("grpo_common")["policy_loss"]
        old, new, advantage = (torch.tensor(case[k], dtype=dtype) for k in ("old_logps", "logps", "advantages"))
        per_token = ppo_token_loss(
            new, old, advantage, eps_low=case["clip_low"], eps_high=case["clip_high"], dual_clip=case["clip_ratio_c"]
        )
        loss = aggregate(per_token, torch.tensor(case["mask"]).bool(), mode)
        expected = case["expected_loss_clipfrac_kl_clipfraclower_by_agg_mode"][mode][0]
        torch.testing.assert_close(loss, torch.tensor(expected, dtype=dtype), **TOLERANCE[dtype])

    @pytest.mark.parametrize(
        ("kind", "field"),
        [("mean", "mean_only"), ("std", "std_ddof1_eps1e_6_dare"), ("loo", "leave_one_out")],
    )
    def test_group_advantages(self, oracle, dtype, kind, field):
        case = oracle("grpo_common")["advantages"]
        names = sorted(set(case["groups"]))
        groups = torch.tensor([names.index(name) for name in case["groups"]])
        found = group_advantages(torch.tensor(case["rewards"], dtype=dtype), groups, kind)
        torch.testing.assert_close(found, torch.tensor(case[field], dtype=dtype), **TOLERANCE[dtype])

    @pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
    def test_kl_estimates(self, oracle, dtype, kind):
        case = oracle("grpo_common")["kl"]
        found = kl(torch.tensor(case["policy"], dtype=dtype), torch.tensor(case["ref"], dtype=dtype), kind)
        torch.testing.assert_close(found, torch.tensor(case[kind], dtype=dtype), **TOLERANCE[dtype])


class TestPolicyLoss:
    @pytest.mark.parametrize("difference", [-50.0, 50.0])
    @pytest.mark.parametrize("advantage", [-1.0, 1.0])
    @pytest.mark.parametrize("dual_clip", [None, 3.0])
    def test_is_finite_at_extreme_ratios(self, dtype, difference, advantage, dual_clip):
        new = torch.zeros(1, 1, dtype=dtype, requires_grad=True)
        old = torch.full((1, 1), -difference, dtype=dtype)
        loss = ppo_token_loss(new, old, torch.full((1, 1), advantage, dtype=dtype), eps_low=0.2, dual_clip=dual_clip)
        loss.sum().backward()
        assert torch.isfinite(loss).all()
        assert torch.isfinite(new.grad).all()

    @pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
    @pytest.mark.parametrize("difference", [-50.0, 50.0])
    def test_kl_is_finite_at_extreme_ratios(self, dtype, kind, difference):
        new = torch.zeros(1, dtype=dtype, requires_grad=True)
        value = kl(new, torch.full((1,), difference, dtype=dtype), kind)
        value.sum().backward()
        assert torch.isfinite(value).all()
        assert torch.isfinite(new.grad).all()

    def test_k3_pulls_back_from_either_side(self, dtype):
        """Its gradient never turns round, however far the reference lies."""
        for difference in (0.5, 5.0, 19.0, 25.0, 50.0):
            new = torch.tensor([-60.0, -60.0], dtype=dtype, requires_grad=True)
            kl(new, new.detach() + torch.tensor([difference, -difference], dtype=dtype), "k3").sum().backward()
            assert new.grad[0] <= 0 <= new.grad[1]
            assert difference > 20 or bool(new.grad[0] < 0)

    def test_terms_of_tokens_and_of_responses_agree(self):
        """One token per response: the ratio of a response is that of its token."""
        generator = torch.Generator().manual_seed(0)
        new, old = (torch.randn(50, 1, generator=generator, dtype=torch.float64) for _ in range(2))
        advantage = torch.randn(50, generator=generator, dtype=torch.float64)
        for options in (ClipOptions(), ClipOptions(eps_low=0.1, eps_high=0.3, dual_clip=1.5)):
            tokens, metrics = clipped_tokens(new, old, None, torch.ones(50, 1).bool(), advantage, options)
            responses, other = clipped_responses((new - old)[:, 0], advantage, options)
            torch.testing.assert_close(tokens[:, 0], responses)
            assert metrics == pytest.approx(other)
            assert ("dual_clip_fraction" in metrics) == (options.dual_clip is not None)

    def test_metrics_by_hand(self):
        """Ratios 2, 0.5, 4 and an uncounted one under clip 0.2 and dual clip 3."""
        new = torch.tensor([[2.0, 0.5, 4.0, 9.0]]).log()
        advantage = torch.tensor([[1.0, -1.0, -1.0, -1.0]])
        mask = torch.tensor([[True, True, True, False]])
        options = ClipOptions(dual_clip=3.0, beta=0.5, kl="k1")
        per_token, metrics = clipped_tokens(new, torch.zeros(1, 4), new - 1, mask, advantage, options)
        torch.testing.assert_close(per_token[0, :3], torch.tensor([-1.2, 0.8, 3.0]) + 0.5)
        assert metrics["clip_fraction"] == pytest.approx(2 / 3)
        assert metrics["dual_clip_fraction"] == pytest.approx(1 / 3)
        assert metrics["ratio_mean"] == pytest.approx(6.5 / 3)
        assert metrics["kl"] == pytest.approx(1.0)

    def test_by_hand(self):
        """Ratio 2 at advantage 1 is clipped to 1.2; at advantage -1 it is not; dual clip 1.5 bounds that."""
        new, old = torch.tensor([math.log(2.0)] * 2), torch.zeros(2)
        advantage = torch.tensor([1.0, -1.0])
        torch.testing.assert_close(ppo_token_loss(new, old, advantage, eps_low=0.2), torch.tensor([-1.2, 2.0]))
        bounded = ppo_token_loss(new, old, advantage, eps_low=0.2, dual_clip=1.5)
        torch.testing.assert_close(bounded, torch.tensor([-1.2, 1.5]))

    def test_upper_and_lower_clip_are_separate(self):
        new, old = torch.tensor([math.log(2.0), math.log(0.5)]), torch.zeros(2)
        loss = ppo_token_loss(new, old, torch.tensor([1.0, -1.0]), eps_low=0.1, eps_high=0.3)
        torch.testing.assert_close(loss, torch.tensor([-1.3, 0.9]))

    def test_gradient_at_ratio_one_is_minus_the_advantage(self):
        new = torch.tensor([0.3, -2.0], requires_grad=True)
        ppo_token_loss(new, new.detach(), torch.tensor([2.0, -0.5]), eps_low=0.2).sum().backward()
        torch.testing.assert_close(new.grad, torch.tensor([-2.0, 0.5]))

    def test_kl_of_equal_policies_is_zero_with_zero_gradient(self):
        for kind in ("k2", "k3"):
            new = torch.tensor([-1.0, -3.0], requires_grad=True)
            value = kl(new, new.detach(), kind)
            value.sum().backward()
            assert value.tolist() == [0.0, 0.0]
            assert new.grad.tolist() == [0.0, 0.0]

    def test_unknown_names_are_refused(self):
        one = torch.ones(1, 1)
        with pytest.raises(ValueError, match=r"k4.*k1, k2, k3"):
            kl(one, one, "k4")
        with pytest.raises(ValueError, match=r"'mean'.*token-mean"):
            aggregate(one, one.bool(), "mean")
        with pytest.raises(ValueError, match=r"'tokens'.*sequence, token"):
            sft_weights(one.bool(), one, one.bool(), "tokens")
        with pytest.raises(ValueError, match=r"'zscore'.*mean, std, loo"):
            group_advantages(torch.ones(2), torch.zeros(2).long(), "zscore")


class TestAdvantages:
    @given(
        reward=st.floats(-1e3, 1e3, allow_nan=False, width=32),
        size=st.integers(2, 9),
        groups=st.integers(1, 3),
        kind=st.sampled_from(["mean", "std", "loo", "zpop"]),
    )
    def test_equal_rewards_give_exactly_zero(self, reward, size, groups, kind):
        index = torch.arange(groups).repeat_interleave(size)
        found = group_advantages(torch.full((groups * size,), reward), index, kind)
        assert found.tolist() == [0.0] * (groups * size)

    def test_a_group_of_one(self):
        for kind in ("mean", "loo"):
            assert group_advantages(torch.tensor([3.0, 5.0]), torch.tensor([0, 1]), kind).tolist() == [0.0, 0.0]
        for kind in ("std", "zpop"):
            with pytest.raises(ValueError, match=rf"'{kind}' needs at least 2 responses per prompt.*group_size"):
                group_advantages(torch.tensor([3.0, 5.0, 1.0]), torch.tensor([0, 1, 1]), kind)

    @given(
        rewards=st.lists(st.floats(-100, 100, width=32), min_size=6, max_size=6),
        kind=st.sampled_from(["mean", "std", "loo", "zpop"]),
    )
    def test_a_group_sums_to_zero_and_keeps_its_order(self, rewards, kind):
        values = torch.tensor(rewards, dtype=torch.float64)
        found = group_advantages(values, torch.tensor([0, 0, 0, 1, 1, 1]), kind)
        assert torch.isfinite(found).all()
        for group in (slice(0, 3), slice(3, 6)):
            assert float(found[group].sum()) == pytest.approx(0.0, abs=1e-6)
            order = values[group].argsort()
            assert (found[group][order].diff() >= -1e-9).all()

    def test_scaled_kinds_by_hand(self):
        """Rewards 0, 0, 3: mean 1, standard deviation sqrt(3) (ddof 1) or sqrt(2) (population)."""
        rewards, groups = torch.tensor([0.0, 0.0, 3.0], dtype=torch.float64), torch.zeros(3).long()
        for kind, delta, scale in (
            ("std", 1e-6, math.sqrt(3) + 1e-6),
            ("std", 1e-4, math.sqrt(3) + 1e-4),
            ("zpop", 1e-4, math.sqrt(2)),
            ("loo", 1e-4, 2 / 3),
        ):
            found = group_advantages(rewards, groups, kind, delta=delta)
            assert found.tolist() == pytest.approx([-1 / scale, -1 / scale, 2 / scale], abs=1e-12)

    def test_leave_one_out_is_the_mean_rescaled(self):
        rewards, groups = torch.rand(12, dtype=torch.float64), torch.arange(3).repeat(4)
        mean, loo = group_advantages(rewards, groups, "mean"), group_advantages(rewards, groups, "loo")
        torch.testing.assert_close(loo, mean * 4 / 3)

    def test_group_names_and_order_do_not_matter(self):
        rewards = torch.rand(8, dtype=torch.float64)
        groups = torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])
        order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
        plain = group_advantages(rewards, groups, "std")
        torch.testing.assert_close(group_advantages(rewards[order], groups[order] * 7 - 3, "std"), plain[order])


class TestAggregate:
    loss = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]).bool()

    @pytest.mark.parametrize(
        ("mode", "expected"),
        [
            ("token-mean", 16 / 4),
            ("seq-mean-token-sum", 16 / 2),
            ("seq-mean-token-mean", (2 + 10) / 2),
            ("seq-mean-token-sum-norm", (6 + 10) / 4),
        ],
    )
    def test_by_hand(self, mode, expected):
        assert float(aggregate(self.loss, self.mask, mode)) == pytest.approx(expected)

    def test_fixed_length(self):
        assert float(aggregate(self.loss, self.mask, "seq-mean-token-sum-norm", fixed_length=8)) == pytest.approx(2.0)

    @pytest.mark.parametrize("mode", AGGREGATIONS)
    def test_nothing_counted_gives_zero_even_where_the_loss_is_not_finite(self, mode):
        value = aggregate(torch.full((2, 3), torch.nan), torch.zeros(2, 3).bool(), mode)
        assert float(value) == 0.0

    def test_equal_lengths_make_both_means_equal(self):
        mask = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0]]).bool()
        token = aggregate(self.loss, mask, "token-mean")
        torch.testing.assert_close(token, aggregate(self.loss, mask, "seq-mean-token-mean"))


class TestWeights:
    @pytest.mark.parametrize("norm", SFT_NORMS)
    def test_no_mask_gives_zeros(self, norm):
        weights = sft_weights(torch.zeros(2, 3).bool(), torch.full((2,), 0.5), torch.zeros(2, 3).bool(), norm)
        assert weights.dtype == torch.float64
        assert not weights.any()

    def test_a_probability_per_position(self):
        masked, counted = torch.tensor([[1, 1, 0]]).bool(), torch.ones(1, 3).bool()
        p = torch.tensor([[0.5, 0.25, 1.0]])
        assert sft_weights(masked, p, counted, "batch").tolist() == [[2.0, 4.0, 0.0]]
        assert sft_weights(masked, p, counted, "batch", inverse=False).tolist() == [[1.0, 1.0, 0.0]]

    def test_token_logps_are_log_softmax(self):
        logits, ids = torch.randn(2, 3, 5, dtype=torch.float64), torch.randint(0, 5, (2, 3))
        expected = logits.gather(-1, ids[..., None])[..., 0] - logits.exp().sum(-1).log()
        torch.testing.assert_close(token_logps(logits, ids), expected)
