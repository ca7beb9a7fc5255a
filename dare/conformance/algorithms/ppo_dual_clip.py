"""ppo_dual_clip: DARE's clipped policy loss with two bounds for negative advantages."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dare_bench.dare.algorithms.objectives import aggregate, kl
from dare_bench.dare.algorithms.options import ClipOptions
from dare_bench.dare.algorithms.policy import clipped_tokens
from dare_bench.dare.conformance.fixture import Compared, Fixture


def cases(data: Fixture) -> Iterator[Compared]:
    """Loss, gradient and the fractions recorded beside them."""
    old, advantages, mask = data.tensor("old"), data.tensor("advantages"), data.tensor("mask").bool()
    for bound, case in data["by_clip_ratio_c"].items():
        new = data.tensor("new").requires_grad_()
        options = ClipOptions(eps_low=data["clip_low"], eps_high=data["clip_high"], dual_clip=float(bound))
        per_token, metrics = clipped_tokens(new, old, None, mask, advantages, options)
        loss = aggregate(per_token, mask, "token-mean")
        yield Compared(f"c {bound}: loss", case["loss"], loss)
        (gradient,) = torch.autograd.grad(loss, new)
        yield Compared(f"c {bound}: gradient", case["grad"], gradient, 2e-6)
        yield Compared(f"c {bound}: clip fraction", case["clipfrac"], metrics["clip_fraction"])
        yield Compared(f"c {bound}: KL to the old policy", case["ppo_kl_k3"], kl(new, old, "k3")[mask].mean())
        yield Compared(f"c {bound}: dual clip fraction", case["lower"], metrics["dual_clip_fraction"])
