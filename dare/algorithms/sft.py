"""Supervised fine-tuning: masked diffusion (LLaDA, Dream) and block diffusion (SDAR, LLaDA2.x, BD3-LM)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.algorithms.sft_options import PRESETS, SFTConfig, unsupported_schedule
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from dare_bench.dare.algorithms import objectives, sft_corruption
    from dare_bench.dare.diffusion import block, corruption
    from torch import Tensor
else:
    torch = lazy_import("torch")
    objectives = lazy_import("dare_bench.dare.algorithms.objectives")
    sft_corruption = lazy_import("dare_bench.dare.algorithms.sft_corruption")
    block = lazy_import("dare_bench.dare.diffusion.block")
    corruption = lazy_import("dare_bench.dare.diffusion.corruption")


@register(
    "sft",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=SFTConfig,
    presets=PRESETS,
    train_presets={
        "dare": {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.01, "schedule": "cosine", "batch_size": 256,
                 "steps": 1000, "warmup_steps": 100, "max_length": 4096},
        "dream": {"lr": 5e-6, "batch_size": 576, "max_length": 4000},
    },
    check=unsupported_schedule,
)  # fmt: skip
class SFT:
    """Supervised fine-tuning on prompt/completion pairs, masked or block diffusion.

    Source:
        LLaDA (arXiv 2502.09992) eq. 5 and guideline; Dream (arXiv 2508.15487); BD3-LM (arXiv 2503.09573); SDAR
        (arXiv 2510.06303); LLaDA2.0 (arXiv 2512.15745).
    """

    name = "sft"
    needs = Needs(rollout="none", old=False)
    separable = True  # the loss is a sum over rows: one pass per micro-batch

    def __init__(self, config: SFTConfig | None = None) -> None:
        self.config = config or SFTConfig()

    def advantages(self, batch: Batch) -> Tensor:
        """Every example counts once."""
        return torch.ones(len(batch.ids))

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """One corrupted copy per example (two with `complementary`), normaliser folded into the weights."""
        options = self.config
        size = options.block_length(context.step, batch.block_length)
        batch = sft_corruption.cut(replace(batch, block_length=size), context, options.response_cut)
        masked, probability = self._corrupt(batch, context)
        masked &= batch.counted
        norm = options.loss_norm or ("token" if batch.block_length else "sequence")
        bound = options.weight == "inv_t"
        copies = [(masked, probability)]
        share = 1.0
        if options.complementary:
            copies.append((corruption.complement(masked, batch.counted), 1 - probability))
            if norm == "masked_token":
                norm = "token"  # the copies share a batch, in which every answer token is masked exactly once
            elif bound:
                share = 0.5  # both copies estimate the same bound
        parts = []
        for draw, (mask, p) in enumerate(copies):
            weight = objectives.sft_weights(mask, p.clamp(min=options.eps), batch.counted, norm, inverse=bound) * share
            if not bound:
                weight = weight * sft_corruption.time_weights(mask, p, batch.real, options)
            if options.semi_ar_share and not batch.block_length:
                weight = weight * sft_corruption.tail_factor(batch, context, options)
            noisy = corruption.apply_mask(batch.ids, mask, batch.mask_token_id)
            parts.append(block.rows_from(batch, noisy, mask, weight, draw=draw))
        return [block.concatenate(parts)]

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Weighted sum of the tokens' losses: the normaliser is part of the weights."""
        tokens = -new[..., 0]
        if self.config.focal_alpha is not None:
            tokens = sft_corruption.focal(tokens, self.config.focal_alpha, self.config.focal_gamma)
        loss = (rows.weight.to(new.dtype) * tokens).sum()
        return loss, {
            "loss": float(loss.detach()),
            "nll_masked": float(-new.detach().sum() / rows.mask.sum().clamp(min=1)),
        }

    def _corrupt(self, batch: Batch, context: Context) -> tuple[Tensor, Tensor]:
        """Masked positions bool [B, S] and the probability [B, S] with which each was masked."""
        return sft_corruption.corrupt(batch, context, self.config)


__all__ = ["SFT", "SFTConfig"]
