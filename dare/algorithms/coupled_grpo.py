"""Coupled-GRPO: token likelihoods from complementary masks (DiffuCoder, arXiv 2506.20639)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.options import TokenOptions, check_range
from dare_bench.dare.algorithms.policy import GroupPolicy, clipped_tokens
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.lazy import lazy_import
from dare_bench.dare.randomness import uniform

if TYPE_CHECKING:
    import torch
    from dare_bench.dare.algorithms import objectives, surrogates
    from dare_bench.dare.diffusion import block, corruption
    from torch import Tensor
else:
    torch = lazy_import("torch")
    objectives = lazy_import("dare_bench.dare.algorithms.objectives")
    surrogates = lazy_import("dare_bench.dare.algorithms.surrogates")
    block = lazy_import("dare_bench.dare.diffusion.block")
    corruption = lazy_import("dare_bench.dare.diffusion.corruption")


@dataclass(frozen=True)
class CoupledConfig(TokenOptions):
    """Options of `coupled_grpo`, beside those of every clipped policy gradient.

    Attributes:
        eps_low: wide, because the surrogate weighs log-probabilities by up to 1 / t: its ratio exaggerates.
        t_low, t_high: range of the masking probability, one draw per batch, inner iteration and pair.
        pairs: complementary pairs of masks beside the full mask (the paper's lambda).
    """

    group_size: int = 10
    inner_iterations: int = 2
    eps_low: float = 0.5
    t_low: float = 0.2
    t_high: float = 0.8
    pairs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, {"pairs": (0, float("inf"))})
        if not 0 < self.t_low <= self.t_high < 1:
            raise ValueError(
                f"t_low: {self.t_low!r} with t_high {self.t_high!r}; allowed: 0 < t_low <= t_high < 1, so that both "
                "masks of a pair have a finite weight"
            )


_TRAINING = {
    "lr": 1e-6, "schedule": "cosine", "betas": (0.9, 0.99), "weight_decay": 0.1, "grad_clip": 0.2, "batch_size": 10,
}  # fmt: skip


@register(
    "coupled_grpo",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=CoupledConfig,
    presets={
        "paper": {"advantage": "mean", "temperature": 1.2, "beta": 0.01},
        "repo": {"advantage": "loo", "temperature": 1.0, "beta": 0.01},
        # DARE seeds its masks with one constant: one mask for all samples and steps, t = 0.5837. Not reproduced.
        "dare": {"group_size": 8, "inner_iterations": 1, "eps_low": 0.2, "dual_clip": 3.0, "advantage": "std",
                 "temperature": 0.6, "counted": "canvas"},
    },
    train_presets={
        "paper": _TRAINING,
        "repo": _TRAINING,
        "dare": {"lr": 5e-7, "betas": (0.9, 0.999), "weight_decay": 0.01, "grad_clip": 1.0, "batch_size": 16},
    },
)  # fmt: skip
class CoupledGRPO(GroupPolicy):
    """Coupled-GRPO: each token scored under the full mask and once in a pair of complementary masks.

    With a masking probability t, m1 = (u < t) and m2 its complement, a token's surrogate is the mean of its log-probability
    under the full mask and of those in the pair, weighted 1 / t or 1 / (1 - t); it is combined before the ratio. It is no
    log-probability: see `CoupledConfig.eps_low`. The prompt is never masked. On block families the three corruptions hold
    for every block given the clean earlier ones, which is how these models are trained and decoded.

    DiffuCoder decodes 256 tokens one at a time by entropy (``alg_temp`` 0, top-p 0.95); its code forms the leave-one-out
    advantage, the paper's best result the mean one. DARE samples Dream at temperature 0.2, from 8 prompts.

    Source:
        arXiv 2506.20639; apple/ml-diffucoder `coupled_grpo.py`.
    """

    name = "coupled_grpo"
    needs = Needs(rollout="policy", old=True, ref="frozen")
    Config = CoupledConfig

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """Per response: the full mask (draw 0), then mask and complement of each pair."""
        counted, share = self.counted(batch), 1 / (self.config.pairs + 1)
        yield surrogates.masked_completion(batch, context, counted, weight=share)
        for pair in range(self.config.pairs):
            t = self.level(context, pair)
            level = torch.full((len(batch.ids),), t, dtype=torch.float64)
            first = corruption.bernoulli_mask(context.seeds(f"mask {pair}", batch), level, batch.response)
            second = corruption.complement(first, batch.response)
            for half, (masked, probability) in enumerate(((first, t), (second, 1 - t))):
                noisy = corruption.apply_mask(batch.ids, masked, batch.mask_token_id)
                weight = torch.full(batch.ids.shape, share / probability, dtype=torch.float64)
                yield block.rows_from(batch, noisy, masked & counted, weight, draw=1 + 2 * pair + half)

    def level(self, context: Context, pair: int) -> float:
        """Masking probability of one pair: one per batch and inner iteration."""
        low, high = self.config.t_low, self.config.t_high
        return low + (high - low) * float(uniform([context.seed(f"t {pair}")], 1))

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Surrogates gathered per (response, position), then the clipped term + beta x KL over counted tokens."""
        mask = self._tokens(rows.mask.double(), rows, len(advantages)) > 0
        per_token, metrics = clipped_tokens(
            self.surrogate(new, rows, len(advantages)),
            None if old is None else self.surrogate(old, rows, len(advantages)),
            None if ref is None else self.surrogate(ref, rows, len(advantages)),
            mask,
            advantages,
            self.config,
        )
        loss = objectives.aggregate(per_token, mask, self.config.aggregation)
        return loss, metrics | {"loss": float(loss.detach())}

    def surrogate(self, logp: Tensor, rows: Rows, responses: int) -> Tensor:
        """Combined value of each token, [B, W], 0 where nothing counts.

        Args:
            logp: [N, S, 1].
            rows: of all draws.
            responses: B.
        """
        weight = torch.where(rows.mask, rows.weight, 0.0).to(logp.dtype)
        return self._tokens(weight * logp[..., 0], rows, responses)

    @staticmethod
    def _tokens(values: Tensor, rows: Rows, responses: int) -> Tensor:
        return surrogates.by_place(values, rows, rows.owner, responses)
