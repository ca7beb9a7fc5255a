"""Supervised fine-tuning: masked diffusion (LLaDA) and block diffusion (SDAR, LLaDA2.x, BD3-LM)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.lazy import lazy_import
from dare_bench.dare.randomness import stream_seed

if TYPE_CHECKING:
    import torch
    from dare_bench.dare.algorithms import objectives
    from dare_bench.dare.diffusion import block, corruption
    from torch import Tensor
else:
    torch = lazy_import("torch")
    objectives = lazy_import("dare_bench.dare.algorithms.objectives")
    block = lazy_import("dare_bench.dare.diffusion.block")
    corruption = lazy_import("dare_bench.dare.diffusion.corruption")


@dataclass(frozen=True)
class SFTConfig:
    """Options of `sft`.

    Attributes:
        loss_norm: ``sequence``, ``token``, ``batch`` or ``masked_token``; null = ``sequence`` under full attention
            (LLaDA guideline), ``token`` under block diffusion (SDAR).
        weight: ``inv_t`` (a likelihood bound) or ``none``.
        noise_scope: one noise level per ``sequence`` or per ``block`` (block families).
        noise_low, noise_high: range of the noise level.
        eps: floor of the masking probability.
        stratified: spread block noise levels evenly over the batch (BD3-LM).
        complementary: train on both halves of every mask (LLaDA2.0).
        treat_eos_as_one: trailing end tokens are visible or masked together.
        semi_ar_share: share of rows corrupted as the semi-autoregressive decoder meets them (full attention): clean
            blocks, one active block at a random noise level, everything behind it masked.
        semi_ar_tail_weight: weight of the masked tail in such rows.
        semi_ar_block: length of the active block.
        semi_ar_from: share of the run after which such rows are made; before it every row is masked at random.
    """

    loss_norm: str | None = None
    weight: str = "inv_t"
    noise_scope: str = "sequence"
    noise_low: float = 0.0
    noise_high: float = 1.0
    eps: float = 1e-3
    stratified: bool = False
    complementary: bool = False
    treat_eos_as_one: bool = False
    semi_ar_share: float = 0.0
    semi_ar_tail_weight: float = 0.2
    semi_ar_block: int = 8
    semi_ar_from: float = 0.0

    def __post_init__(self) -> None:
        _check("loss_norm", self.loss_norm, (None, "sequence", "token", "batch", "masked_token"))
        _check("weight", self.weight, ("inv_t", "none"))
        _check("noise_scope", self.noise_scope, ("sequence", "block"))
        if not 0 <= self.noise_low <= self.noise_high <= 1:
            raise ValueError(
                f"noise_low, noise_high: {self.noise_low}, {self.noise_high}; allowed: 0 <= low <= high <= 1"
            )


def _check(field: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{field}: {value!r}; allowed: {', '.join(map(repr, allowed))}")


_LLADA2 = {"noise_low": 0.3, "noise_high": 0.8, "weight": "none", "loss_norm": "masked_token", "eps": 0.0}


@register(
    "sft",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=SFTConfig,
    presets={
        "paper": {},
        "repo": {},
        "dare": {"loss_norm": "masked_token"},
        "sdar": {"noise_scope": "sequence", "weight": "inv_t", "loss_norm": "token"},
        "llada2": _LLADA2,
        "bd3lm": {"noise_scope": "block", "weight": "inv_t", "stratified": True, "loss_norm": "token"},
    },
    train_presets={
        "dare": {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.01, "schedule": "cosine", "batch_size": 256,
                 "steps": 1000, "warmup_steps": 100, "max_length": 4096},
    },
)  # fmt: skip
class SFT:
    """Supervised fine-tuning on prompt/completion pairs, masked or block diffusion.

    Source:
        LLaDA (arXiv 2502.09992) eq. 5 and guideline; BD3-LM (arXiv 2503.09573); SDAR (arXiv 2510.06303).
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
        masked, probability = self._corrupt(batch, context)
        masked &= batch.counted
        norm = options.loss_norm or ("token" if batch.block_length else "sequence")
        inverse = options.weight == "inv_t"
        copies = [(masked, probability)]
        share = 1.0
        if options.complementary:
            copies.append((corruption.complement(masked, batch.counted), 1 - probability))
            if norm == "masked_token":
                norm = "token"  # the copies share a batch, in which every answer token is masked exactly once
            elif inverse:
                share = 0.5  # both copies estimate the same bound
        parts = []
        for draw, (mask, p) in enumerate(copies):
            weight = objectives.sft_weights(mask, p.clamp(min=options.eps), batch.counted, norm, inverse=inverse)
            weight = weight * share
            if options.semi_ar_share and not batch.block_length:
                weight = weight * self._tail_factor(batch, context)
            noisy = corruption.apply_mask(batch.ids, mask, batch.mask_token_id)
            parts.append(block.rows_from(batch, noisy, mask, weight, draw=draw))
        return [block.concatenate(parts)]

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """``-(weight * logp).sum()``: the normaliser is part of the weights."""
        loss = -(rows.weight.to(new.dtype) * new[..., 0]).sum()
        return loss, {
            "loss": float(loss.detach()),
            "nll_masked": float(-new.detach().sum() / rows.mask.sum().clamp(min=1)),
        }

    def _corrupt(self, batch: Batch, context: Context) -> tuple[Tensor, Tensor]:
        """Masked positions bool [B, S] and the probability [B, S] with which each was masked."""
        options, seeds = self.config, context.seeds("noise", batch)
        length = batch.ids.shape[1]
        bounds = {"low": options.noise_low, "high": options.noise_high, "eps": options.eps}
        if options.noise_scope == "block" and batch.block_length:
            blocks = -(-length // batch.block_length)
            stratified = context.seed("strata") if options.stratified else None
            levels = corruption.block_noise_levels(seeds, blocks, **bounds, stratified_seed=stratified)
            p = levels.repeat_interleave(batch.block_length, 1)[:, :length]
        else:
            p = corruption.noise_levels(seeds, **bounds)[:, None].expand(-1, length)
        masked = corruption.bernoulli_mask(context.seeds("mask", batch), p, batch.response)
        if options.treat_eos_as_one:
            masked = corruption.treat_end_as_one(masked, batch.ids, batch.lengths, batch.eos_token_id)
        if options.semi_ar_share and not batch.block_length:
            chosen, before, behind = self._semi_ar(batch, context)
            masked = torch.where(chosen[:, None], (masked & ~before) | behind, masked)
            p = torch.where(chosen[:, None] & behind, 1.0, p)
        return masked & batch.response, p

    def _semi_ar(self, batch: Batch, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Rows seen as the decoder sees them: chosen bool [B]; positions before / behind the active block bool [B, S]."""
        from dare_bench.dare.randomness import uniform

        seeds = [stream_seed(seed, "semi_ar") for seed in context.seeds("noise", batch)]
        u = uniform(seeds, 2)
        size = self.config.semi_ar_block
        blocks = (batch.lengths - batch.prompt_lengths + size - 1).div(size, rounding_mode="floor")
        active = (u[:, 1] * blocks).long()
        start = batch.prompt_lengths + active * size
        columns = torch.arange(batch.ids.shape[1])
        before = columns < start[:, None]
        behind = (columns >= start[:, None] + size) & batch.response
        begun = context.step >= self.config.semi_ar_from * context.total_steps
        return (u[:, 0] < self.config.semi_ar_share) & begun, before, behind

    def _tail_factor(self, batch: Batch, context: Context) -> Tensor:
        chosen, _, behind = self._semi_ar(batch, context)
        return torch.where(chosen[:, None] & behind, self.config.semi_ar_tail_weight, 1.0)
