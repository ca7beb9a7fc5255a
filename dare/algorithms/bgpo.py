"""BGPO: a lower bound of the policy objective that is a sum over draws (arXiv 2510.11683)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.options import ClipOptions, check_choice, check_range
from dare_bench.dare.algorithms.policy import GroupPolicy
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from dare_bench.dare.algorithms import estimators, sequence
    from torch import Tensor
else:
    torch = lazy_import("torch")
    estimators = lazy_import("dare_bench.dare.algorithms.estimators")
    sequence = lazy_import("dare_bench.dare.algorithms.sequence")


@dataclass(frozen=True)
class BGPOConfig(ClipOptions):
    """Options of `bgpo`, beside those of every clipped policy gradient.

    Attributes:
        eps_low: null = no clipping (the paper).
        draws: Monte-Carlo draws per response (m), one backward pass each.
        strata: unlike mask counts among them (n_l); null = as many as draws.
        length_norm: estimates are divided by the number of counted tokens.
        aggregation: how responses add up: by their counted tokens (``token-mean``) or alike (``seq-mean``).
        beta, kl: KL of each draw's estimate to the reference's on the same mask (k1 with the gradient that is right on
            average).
    """

    eps_low: float | None = None
    advantage: str = "std"
    draws: int = 16
    strata: int | None = None
    length_norm: bool = True
    aggregation: str = "seq-mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, {"draws": (1, float("inf")), "strata": (1, self.draws)})
        check_choice(self, {"aggregation": ("token-mean", "seq-mean")})
        if self.strata is not None and self.draws % self.strata:
            raise ValueError(f"strata: {self.strata!r}; allowed: a divisor of draws ({self.draws})")
        if self.eps_low is None and self.eps_high is not None:
            raise ValueError(f"eps_high: {self.eps_high!r} without eps_low; allowed: both, or neither")


_DARE = {"group_size": 8, "draws": 16, "strata": 16, "advantage": "std", "eps_low": 0.2, "dual_clip": 3.0,
         "aggregation": "token-mean", "length_norm": True}  # fmt: skip
_TRAIN = {"lr": 5e-7, "betas": (0.9, 0.999), "weight_decay": 0.01, "grad_clip": 1.0, "batch_size": 16}


@register(
    "bgpo",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=BGPOConfig,
    presets={
        "paper": {"group_size": 8, "draws": 16, "strata": 16, "advantage": "std", "eps_low": None, "length_norm": False,
                  "aggregation": "seq-mean"},
        "dare": {**_DARE, "temperature": 0.6, "counted": "canvas"},
        "dare-dream": {**_DARE, "temperature": 0.2, "counted": "canvas"},
        "dare-llada2": {**_DARE, "temperature": 0.6},
        "dare-sdar": {**_DARE, "temperature": 1.0},
    },
    train_presets={name: _TRAIN for name in ("paper", "dare", "dare-dream", "dare-llada2", "dare-sdar")},
)  # fmt: skip
class BGPO(GroupPolicy):
    """BGPO: a lower bound of the ratio objective, linear (A >= 0) or exponential (A < 0) in each draw, one backward each.

    With d the difference of a draw's ELBO estimate to that of the rollout policy on the same mask, the bound averages
    A (1 + d) or A exp(d) over the draws: memory does not depend on their number. No logarithm of 1 + d is taken, so that
    d < -1 is as good as any.

    Source:
        arXiv 2510.11683; yjyddq/DARE `dllm_core_algos.py`.
    """

    name = "bgpo"
    needs = Needs(rollout="policy", old=True, ref="frozen")
    separable = True
    Config = BGPOConfig

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """One row per response and draw: k of its n counted tokens masked, k stratified on 1..n."""
        counted = self.counted(batch)
        total = counted.sum(1)
        norm = total.clamp(min=1)[:, None] if self.config.length_norm else 1
        masks = estimators.stratified_masks(context, batch, counted, self.config.draws, strata=self.config.strata)
        for draw, (masked, counts) in enumerate(masks):
            yield estimators.elbo_rows(batch, masked, estimators.count_weights(counts, total) / norm, draw, counted)

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Negative bound of some draws, with their share of the whole batch; plus beta x KL."""
        assert context.batch is not None, f"{self.name} needs the batch of its rows"
        lengths = self.counted(context.batch).sum(1)
        tokens = lengths.to(new.device)[rows.owner].double()
        if self.config.aggregation == "token-mean":
            share = tokens / lengths.sum().clamp(min=1)
        else:
            share = (tokens > 0).double() / len(lengths)
        value = _estimate(new, rows)
        before = value.detach() if old is None else _estimate(old, rows)
        terms, ratio, clipped = bound_terms(value - before, advantages[rows.owner], self.config)
        weight = tokens / tokens.sum().clamp(min=1)
        metrics = {
            "ratio_mean": float((weight * ratio).sum()),
            "clip_fraction": float((weight * clipped).sum()),
            "kl_old": float((weight * (before - value.detach())).sum()),
        }
        if self.config.beta:
            assert ref is not None, "beta > 0 needs a reference"
            divergence = sequence.sequence_kl(value, _estimate(ref, rows), self.config.kl)
            terms = terms + self.config.beta * divergence
            metrics["kl"] = float((weight * divergence.detach()).sum())
        loss = (share * terms).sum() / self.config.draws
        return loss, metrics | {"loss": float(loss.detach())}


def _estimate(logp: Tensor, rows: Rows) -> Tensor:
    """Weighted log-probabilities of each row, float64 [N]."""
    return (torch.where(rows.mask, rows.weight, 0.0) * logp[..., 0].double()).sum(1)


def bound_terms(difference: Tensor, advantage: Tensor, options: BGPOConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Negative bound of each draw.

    Args:
        difference: [N], estimate minus that of the rollout policy.
        advantage: [N].
        options: clip, dual clip.

    Returns:
        Loss terms [N], ratios [N] without gradient, and bool [N]: which of them the clip stops.
    """
    advantage = advantage.to(difference.dtype)
    # Finite for any difference, and its square too.
    largest = math.log(torch.finfo(difference.dtype).max) / 2
    rising, falling = 1 + difference, difference.clamp(max=largest).exp()
    ratio = torch.where(advantage >= 0, rising, falling).detach()
    clipped = torch.zeros_like(ratio, dtype=torch.bool)
    if options.eps_low is not None:
        low = 1 - options.eps_low
        high = 1 + (options.eps_low if options.eps_high is None else options.eps_high)
        rising, falling = rising.clamp(max=high), falling.clamp(min=low)
        clipped = ((advantage > 0) & (ratio > high)) | ((advantage < 0) & (ratio < low))
    terms = -torch.where(advantage >= 0, rising, falling) * advantage
    if options.dual_clip is not None:
        terms = torch.where(advantage < 0, torch.minimum(terms, -options.dual_clip * advantage), terms)
    return terms, ratio, clipped
