"""grpo_common: DARE's clipped policy loss in all reductions, group advantages and KL estimates."""

from __future__ import annotations

from collections.abc import Iterator

from dare_bench.dare.algorithms.advantages import group_advantages
from dare_bench.dare.algorithms.objectives import aggregate, kl
from dare_bench.dare.algorithms.options import ClipOptions
from dare_bench.dare.algorithms.policy import clipped_tokens
from dare_bench.dare.conformance.algorithms import _graded
from dare_bench.dare.conformance.fixture import Compared, Fixture


def cases(data: Fixture) -> Iterator[Compared]:
    """Losses and their clip fractions, advantages, KL estimates."""
    case = data["policy_loss"]
    old, new, advantages, mask = (Fixture.array(case[name]) for name in ("old_logps", "logps", "advantages", "mask"))
    mask = mask.bool()
    options = ClipOptions(eps_low=case["clip_low"], eps_high=case["clip_high"], dual_clip=case["clip_ratio_c"])
    per_token, metrics = clipped_tokens(new, old, None, mask, advantages, options)
    # Recorded beside the loss: clip fraction (without the dual clip's), k3 to the old policy, fraction of the dual clip.
    for mode, expected in case["expected_loss_clipfrac_kl_clipfraclower_by_agg_mode"].items():
        expected = Fixture.array(expected)
        yield Compared(f"loss, {mode}", expected[0], aggregate(per_token, mask, mode))
        yield Compared(f"clip fraction, {mode}", expected[1], metrics["clip_fraction"])
        yield Compared(f"KL to the old policy, {mode}", expected[2], kl(new, old, "k3")[mask].mean())
        yield Compared(f"dual clip fraction, {mode}", expected[3], metrics["dual_clip_fraction"])
    found = data["advantages"]
    rewards, groups = Fixture.array(found["rewards"]), _graded.group_index(found["groups"])
    for name, kind in (("mean_only", "mean"), ("std_ddof1_eps1e_6_dare", "std"), ("leave_one_out", "loo")):
        yield Compared(name, found[name], group_advantages(rewards, groups, kind))
    divergence = data["kl"]
    policy, reference = Fixture.array(divergence["policy"]), Fixture.array(divergence["ref"])
    for kind in ("k1", "k2", "k3"):
        yield Compared(kind, divergence[kind], kl(policy, reference, kind))
