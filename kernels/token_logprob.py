"""Log-probabilities of chosen tokens straight from hidden states, without a [N, V] tensor.

The vocabulary projection is done for `chunk_size` rows at a time; the backward pass projects the chunk again instead of
keeping it. Peak extra memory is one chunk of logits, whatever N is. The reference beside it forms all logits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


class TokenLogprobs(NamedTuple):
    """What the output distribution of N positions says, all of it at the temperature that was asked for.

    Attributes:
        logps: [N] or [N, K], natural log-probabilities of the targets; differentiable.
        argmax: [N] int64, the most probable token (the lowest id among equals).
        entropy: [N], entropy of the whole distribution in nats, differentiable; None unless asked for.
        confidence: [N], probability of `argmax`, in (0, 1]; carries no gradient.
    """

    logps: Tensor
    argmax: Tensor
    entropy: Tensor | None
    confidence: Tensor


def token_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    chunk_size: int = 1024,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> TokenLogprobs:
    """Log-probabilities of `targets` under softmax(hidden @ weight.T / temperature), chunk by chunk.

    The product is formed in the dtype of `weight` (as the output head would), everything behind it in float32, or in
    float64 when `weight` is float64. Select the positions first (``hidden[mask]``) and pass only those.

    Args:
        hidden: [N, d] floating point, final hidden states of the positions to score; cast to the dtype of `weight`.
        weight: [V, d] floating point, the output head.
        targets: [N] or [N, K] int64 in [0, V), the tokens to score; K = 0 is allowed when only the rest is wanted.
        chunk_size: rows projected at once, at least 1; peak memory is about chunk_size x V floats.
        temperature: divides the logits, greater than 0.
        with_entropy: also compute the entropy of every row (one more chunk of memory).

    Returns:
        TokenLogprobs in float32 (float64 for float64 weights). First derivatives only: no double backward.

    Raises:
        ValueError: for shapes, dtypes, a chunk size or a temperature outside the above.

    Source: memory-for-recomputation as in Cut Cross-Entropy (arXiv 2411.09009), here in plain torch.
    """
    _check(hidden, weight, targets, chunk_size, temperature)
    columns = targets if targets.dim() == 2 else targets.unsqueeze(1)
    logps, argmax, entropy, confidence = _ChunkedLogprob.apply(
        hidden.to(weight.dtype), weight, columns, chunk_size, float(temperature), with_entropy
    )
    if targets.dim() == 1:
        logps = logps.squeeze(1)
    return TokenLogprobs(logps, argmax, entropy if with_entropy else None, confidence)


def token_logprob_reference(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, temperature: float = 1.0, with_entropy: bool = False
) -> TokenLogprobs:
    """The same numbers as `token_logprob` by ordinary autograd through all [N, V] logits.

    Args:
        hidden: [N, d] floating point.
        weight: [V, d] floating point.
        targets: [N] or [N, K] int64.
        temperature: divides the logits, greater than 0.
        with_entropy: also return the entropy.

    Returns:
        TokenLogprobs, as `token_logprob`.

    Raises:
        ValueError: as `token_logprob`.
    """
    _check(hidden, weight, targets, 1, temperature)
    logits = hidden.to(weight.dtype) @ weight.T
    full = torch.log_softmax(logits.to(_accumulate_dtype(weight)) / temperature, dim=-1)
    columns = targets if targets.dim() == 2 else targets.unsqueeze(1)
    logps = full.gather(1, columns)
    # The argmax is taken before the division: two logits that differ may become equal after it.
    argmax = logits.argmax(dim=-1)
    return TokenLogprobs(
        logps if targets.dim() == 2 else logps.squeeze(1),
        argmax,
        -(full.exp() * full).sum(dim=-1) if with_entropy else None,
        full.detach().gather(1, argmax.unsqueeze(1)).squeeze(1).exp(),
    )


class _ChunkedLogprob(torch.autograd.Function):
    """Forward keeps one chunk of logits; backward forms each chunk again."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        chunk_size: int,
        temperature: float,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        n = hidden.shape[0]
        dtype = _accumulate_dtype(weight)
        logps = hidden.new_empty(targets.shape, dtype=dtype)
        argmax = targets.new_empty(n)
        entropy = hidden.new_empty(n if with_entropy else 0, dtype=dtype)
        confidence = hidden.new_empty(n, dtype=dtype)
        for rows in _chunks(n, chunk_size):
            shifted, best = _shifted_logits(hidden[rows], weight, temperature)
            argmax[rows] = best
            picked = shifted.gather(1, targets[rows])
            if with_entropy:
                weights = shifted.exp()
                total = weights.sum(dim=-1)
                # H = log s - sum(e^z z) / s, with s = sum(e^z)
                entropy[rows] = total.log() - weights.mul_(shifted).sum(dim=-1) / total
            else:
                total = shifted.exp_().sum(dim=-1)
            logps[rows] = picked - total.log().unsqueeze(1)
            confidence[rows] = total.reciprocal()
        ctx.save_for_backward(hidden, weight, targets)
        ctx.settings = (chunk_size, temperature, with_entropy)
        ctx.mark_non_differentiable(argmax, confidence)
        ctx.set_materialize_grads(False)
        return logps, argmax, entropy, confidence

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_logps, _, grad_entropy, _ = grads
        hidden, weight, targets = ctx.saved_tensors
        chunk_size, temperature, with_entropy = ctx.settings
        if not with_entropy:
            grad_entropy = None
        if grad_logps is None and grad_entropy is None:
            return (None,) * 6
        dtype = _accumulate_dtype(weight)
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        # Many chunks add up: summed in bfloat16 the small ones would be lost.
        grad_weight = torch.zeros_like(weight, dtype=dtype) if wants_weight else None
        for rows in _chunks(hidden.shape[0], chunk_size):
            grad_logits = _grad_logits(
                _shifted_logits(hidden[rows], weight, temperature)[0],
                targets[rows],
                None if grad_logps is None else grad_logps[rows],
                None if grad_entropy is None else grad_entropy[rows],
            )
            grad_logits = grad_logits.div_(temperature).to(weight.dtype)
            with torch.autocast(hidden.device.type, enabled=False):
                if grad_hidden is not None:
                    grad_hidden[rows] = grad_logits @ weight
                if grad_weight is not None and weight.dtype == dtype:
                    grad_weight.addmm_(grad_logits.T, hidden[rows])
                elif grad_weight is not None:
                    grad_weight += grad_logits.T @ hidden[rows]
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None


def _grad_logits(shifted: Tensor, targets: Tensor, grad_logps: Tensor | None, grad_entropy: Tensor | None) -> Tensor:
    """Gradient [c, V] with respect to the scaled logits; overwrites `shifted`."""
    if grad_entropy is None:
        logs = None
        probs = torch.softmax(shifted, dim=-1, out=shifted)
    else:
        logs = torch.log_softmax(shifted, dim=-1, out=shifted)
        probs = logs.exp()
    # d logp_t / dz = onehot(t) - p, and the p part is shared by the K targets of a row.
    scale = probs.new_zeros(probs.shape[0], 1) if grad_logps is None else -grad_logps.sum(dim=1, keepdim=True)
    if logs is None or grad_entropy is None:
        grad = probs.mul_(scale)
    else:
        # d H / dz = -p (log p + H)
        terms = probs * logs
        entropy = -terms.sum(dim=-1, keepdim=True)
        weight = grad_entropy.unsqueeze(1)
        grad = probs.mul_(scale - weight * entropy).sub_(terms.mul_(weight))
    if grad_logps is not None:
        grad.scatter_add_(1, targets, grad_logps)
    return grad


def _shifted_logits(hidden: Tensor, weight: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Scaled logits minus their row maximum [c, V], and the argmax [c]."""
    with torch.autocast(hidden.device.type, enabled=False):
        logits = hidden @ weight.T
    top, best = logits.max(dim=-1, keepdim=True)
    dtype = _accumulate_dtype(weight)
    return logits.to(dtype).sub_(top).div_(temperature), best.squeeze(1)


def _chunks(n: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _accumulate_dtype(weight: Tensor) -> torch.dtype:
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def _check(hidden: Tensor, weight: Tensor, targets: Tensor, chunk_size: int, temperature: float) -> None:
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"hidden must be [N, d] and weight [V, d] with the same d, got {tuple(hidden.shape)} and "
            f"{tuple(weight.shape)}; flatten batch and length, or select positions first"
        )
    if targets.dim() not in (1, 2) or targets.shape[0] != hidden.shape[0]:
        raise ValueError(
            f"targets must be [N] or [N, K] with N = {hidden.shape[0]} rows of hidden, got {tuple(targets.shape)}"
        )
    if targets.dtype != torch.int64:
        raise ValueError(f"targets must be int64 token ids, got {targets.dtype}; convert with .long()")
    if not (hidden.is_floating_point() and weight.is_floating_point()):
        raise ValueError(f"hidden and weight must be floating point, got {hidden.dtype} and {weight.dtype}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1 row, got {chunk_size}")
    if not temperature > 0:
        raise ValueError(f"temperature must be greater than 0, got {temperature}; greedy decoding is the argmax field")
