"""What supervised fine-tuning masks, and how much each masked token weighs."""

from __future__ import annotations

from dataclasses import replace

import torch
from dare_bench.dare.algorithms.base import Batch, Context
from dare_bench.dare.algorithms.sft_options import SFTConfig
from dare_bench.dare.diffusion import corruption
from dare_bench.dare.randomness import stream_seed, uniform
from torch import Tensor


def cut(batch: Batch, context: Context, share: float) -> Batch:
    """Cut the responses of some examples at a random length of 1 token or more.

    Args:
        batch: examples.
        context: where in the run.
        share: of the examples.

    Source:
        DreamLM/Dream-Coder, response cut-off.
    """
    if not share:
        return batch
    draws = uniform(context.seeds("cut", batch), 2)
    responses = batch.lengths - batch.prompt_lengths
    kept = torch.where(draws[:, 0] < share, (draws[:, 1] * responses).long() + 1, responses)
    lengths = batch.prompt_lengths + torch.minimum(kept, responses)
    columns = torch.arange(batch.ids.shape[1])
    return replace(batch, lengths=lengths, counted=batch.counted & (columns < lengths[:, None]))


def corrupt(batch: Batch, context: Context, options: SFTConfig) -> tuple[Tensor, Tensor]:
    """Masked positions bool [B, S] and the probability float64 [B, S] with which each was masked.

    Args:
        batch: examples.
        context: where in the run.
        options: noise levels and the like.
    """
    length = batch.ids.shape[1]
    p = _levels(batch, context, options, length)
    masked = corruption.bernoulli_mask(context.seeds("mask", batch), p, batch.response)
    if options.treat_eos_as_one:
        masked = corruption.treat_end_as_one(masked, batch.ids, batch.lengths, batch.eos_token_id)
    if options.semi_ar_share and not batch.block_length:
        chosen, before, behind = _semi_autoregressive(batch, context, options)
        masked = torch.where(chosen[:, None], (masked & ~before) | behind, masked)
        p = torch.where(chosen[:, None] & behind, 1.0, p)
    return masked & batch.response, p


def tail_factor(batch: Batch, context: Context, options: SFTConfig) -> Tensor:
    """Factor [B, S] of the weights: `semi_ar_tail_weight` behind the active block of semi-autoregressive rows."""
    chosen, _, behind = _semi_autoregressive(batch, context, options)
    return torch.where(chosen[:, None] & behind, options.semi_ar_tail_weight, 1.0)


def _levels(batch: Batch, context: Context, options: SFTConfig, length: int) -> Tensor:
    """Noise level of every position [B, S]."""
    bounds = {"low": options.noise_low, "high": options.noise_high, "eps": options.eps}
    if options.even_noise:
        return corruption.even_levels(len(batch.ids), **bounds)[:, None].expand(-1, length)
    seeds = context.seeds("noise", batch)
    if options.noise_scope == "block" and batch.block_length:
        blocks = -(-length // batch.block_length)
        stratified = context.seed("strata") if options.stratified else None
        levels = corruption.block_noise_levels(seeds, blocks, **bounds, stratified_seed=stratified)
        return levels.repeat_interleave(batch.block_length, 1)[:, :length]
    return corruption.noise_levels(seeds, **bounds)[:, None].expand(-1, length)


def time_weights(masked: Tensor, probability: Tensor, real: Tensor, options: SFTConfig) -> Tensor:
    """Weight of every position that does not come from the likelihood bound: ``linear``, ``cart`` or 1.

    Args:
        masked: bool [B, S].
        probability: [B, S], noise level.
        real: bool [B, S], tokens that are read: prompt and response.
        options: which weight.

    Returns:
        float64 [B, S]; to be used at masked positions.

    Source:
        DreamLM/Dream-Coder `fsdp_sft_trainer.py`, `context_adaptive_reweight`; DreamOn (``linear``).
    """
    if options.weight == "linear":
        return 1 - probability.double()
    if options.weight == "cart":
        return context_adaptive(masked, real & ~masked, options.cart_p)
    return torch.ones(masked.shape, dtype=torch.float64)


def context_adaptive(masked: Tensor, visible: Tensor, p: float) -> Tensor:
    """CART: sum over visible tokens at distance d of p (1 - p)^(d - 1) / 2, a mixture of two geometric distributions.

    Args:
        masked, visible: bool [B, S].
        p: parameter of the distributions.

    Returns:
        float64 [B, S] in [0, 1), 0 where not masked.
    """
    places = torch.arange(masked.shape[1])
    distance = (places[:, None] - places[None, :]).abs()
    near = 0.5 * p * (1 - p) ** (distance - 1).clamp(min=0).double()
    near = near.masked_fill(distance == 0, 0.0)
    return (visible.double() @ near) * masked


def focal(loss: Tensor, alpha: float, gamma: float) -> Tensor:
    """Focal factor on each token's loss: alpha (1 - exp(-loss))^gamma loss.

    Args:
        loss: negative log-probabilities.
        alpha, gamma: its parameters.
    """
    return alpha * (1 - (-loss).exp()) ** gamma * loss


def _semi_autoregressive(batch: Batch, context: Context, options: SFTConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Rows seen as the decoder sees them: chosen bool [B]; positions before / behind the active block bool [B, S]."""
    seeds = [stream_seed(seed, "semi_ar") for seed in context.seeds("noise", batch)]
    u = uniform(seeds, 2)
    size = options.semi_ar_block
    blocks = (batch.lengths - batch.prompt_lengths + size - 1).div(size, rounding_mode="floor")
    active = (u[:, 1] * blocks).long()
    start = batch.prompt_lengths + active * size
    columns = torch.arange(batch.ids.shape[1])
    before = columns < start[:, None]
    behind = (columns >= start[:, None] + size) & batch.response
    begun = context.step >= options.semi_ar_from * context.total_steps
    return (u[:, 0] < options.semi_ar_share) & begun, before, behind
