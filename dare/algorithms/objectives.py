"""Losses as pure functions of log-probabilities. All reductions in the dtype given (float32 or better)."""

from __future__ import annotations

import torch
from torch import Tensor

#: Bound of log-ratios before exp: finite for any input, inactive in practice.
MAX_LOG_RATIO = 20.0

SFT_NORMS = ("sequence", "token", "batch", "masked_token")
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def token_logps(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities of `ids` under full logits (reference; training uses the chunked kernel).

    Args:
        logits: aligned [..., V].
        ids: int64 [...].
    """
    return logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def sft_weights(masked: Tensor, probability: Tensor, counted: Tensor, norm: str, *, inverse: bool = True) -> Tensor:
    """Per-position factors such that the SFT loss is ``-(weight * logp).sum()``.

    Args:
        masked: bool [B, S], scored positions.
        probability: [B] or [B, S], probability with which a position was masked.
        counted: bool [B, S], answer positions (n_b per row).
        norm: ``sequence`` mean over rows of sum/(p n_b); ``token`` sum over rows / sum n_b; ``batch`` sum / B;
            ``masked_token`` sum / number of masked positions.
        inverse: divide by the probability (a likelihood bound), or not.

    Returns:
        float64 [B, S], zero where not masked. A batch without masks or answers gives zeros.

    Raises:
        ValueError: for an unknown norm.

    Source:
        ML-GSAI/LLaDA guideline (`sequence`), dllm-reasoning/d1 (`token`), ZHZisZZ/dllm (`batch`), DARE (`masked_token`).
    """
    p = probability if probability.dim() == 2 else probability[:, None]
    weight = masked.double() / (p.double() if inverse else 1.0)
    answers = counted.sum(1, keepdim=True).double()
    if norm == "sequence":
        return weight / (answers.clamp(min=1) * masked.shape[0])
    if norm == "token":
        return weight / answers.sum().clamp(min=1)
    if norm == "batch":
        return weight / masked.shape[0]
    if norm == "masked_token":
        return weight / masked.sum().clamp(min=1).double()
    raise ValueError(f"unknown norm {norm!r}; allowed: {', '.join(SFT_NORMS)}")


def ppo_token_loss(
    logp: Tensor,
    old: Tensor,
    advantages: Tensor,
    *,
    eps_low: float,
    eps_high: float | None = None,
    dual_clip: float | None = None,
) -> Tensor:
    """Clipped surrogate per token.

    Args:
        logp, old: log-probabilities, any equal shape.
        advantages: broadcastable to it.
        eps_low, eps_high: ratio is clipped to [1 - eps_low, 1 + eps_high]; default eps_high = eps_low.
        dual_clip: bound c > 1 of the loss where the advantage is negative.

    Returns:
        Loss per token, to be minimised.
    """
    eps_high = eps_low if eps_high is None else eps_high
    ratio = (logp - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    loss = torch.maximum(-ratio * advantages, -ratio.clamp(1 - eps_low, 1 + eps_high) * advantages)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return loss


def kl(logp: Tensor, ref: Tensor, kind: str) -> Tensor:
    """Per-token estimates of KL(policy || reference).

    Args:
        logp, ref: log-probabilities of the sampled tokens.
        kind: ``k1`` (unbiased, signed), ``k2`` (half the square), ``k3`` (unbiased, non-negative).
    """
    d = ref - logp
    if kind == "k1":
        return -d
    if kind == "k2":
        return d.square() / 2
    if kind == "k3":
        # Bounded as a whole: with the exponential alone bounded, the gradient would turn round behind the bound.
        d = d.clamp(max=MAX_LOG_RATIO)
        return d.exp() - d - 1
    raise ValueError(f"unknown KL estimate {kind!r}; allowed: k1, k2, k3")


def aggregate(loss: Tensor, mask: Tensor, mode: str, *, fixed_length: int | None = None) -> Tensor:
    """Reduce a per-token loss.

    Args:
        loss: [B, L].
        mask: bool [B, L], counted tokens; a row without any contributes 0.
        mode: one of `AGGREGATIONS`; ``seq-mean-token-sum-norm`` is the sum over all rows divided by a fixed length.
        fixed_length: divisor of ``seq-mean-token-sum-norm``; default L.
    """
    counted = mask.to(loss.dtype)
    masked = torch.where(mask, loss, torch.zeros_like(loss))
    if mode == "token-mean":
        return masked.sum() / counted.sum().clamp(min=1)
    if mode == "seq-mean-token-sum":
        return masked.sum(1).mean()
    if mode == "seq-mean-token-mean":
        return (masked.sum(1) / counted.sum(1).clamp(min=1)).mean()
    if mode == "seq-mean-token-sum-norm":
        return masked.sum() / (fixed_length or loss.shape[1])
    raise ValueError(f"unknown aggregation {mode!r}; allowed: {', '.join(AGGREGATIONS)}")
