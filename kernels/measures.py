"""What positions are ordered by, taken from logits: probability, margin, entropy; in float32 or better."""

from __future__ import annotations

import torch
from torch import Tensor


def probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """Probability of one token per position.

    Args:
        logits: [..., V] floating point; -inf closes a token.
        tokens: [...] int64.

    Returns:
        [...] float32, float64 for float64 logits.
    """
    return _wide(logits).log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1).exp()


def margin(logits: Tensor) -> Tensor:
    """Probability of the best token minus that of the second.

    Args:
        logits: [..., V] floating point, V at least 2; -inf closes a token.

    Returns:
        [...] float32, float64 for float64 logits.

    Source: Dream `generation_utils.py`, ``topk_margin``.
    """
    best = _wide(logits).softmax(-1).topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the distribution in nats; a closed token adds nothing.

    Args:
        logits: [..., V] floating point; -inf closes a token.

    Returns:
        [...] float32, float64 for float64 logits; never negative.

    Source: Dream `generation_utils.py`, ``entropy`` (there with 1e-10 inside the logarithm and the sign turned).
    """
    return torch.special.entr(_wide(logits).softmax(-1)).sum(-1)


def probability_reference(logits: Tensor, tokens: Tensor) -> Tensor:
    """The result of `probability` in float64, as a definition."""
    return logits.double().softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def margin_reference(logits: Tensor) -> Tensor:
    """The result of `margin` in float64, as a definition."""
    ordered = logits.double().softmax(-1).sort(-1, descending=True).values
    return ordered[..., 0] - ordered[..., 1]


def entropy_reference(logits: Tensor) -> Tensor:
    """The result of `entropy` in float64, as a definition."""
    found = logits.double().softmax(-1)
    return -torch.where(found > 0, found * found.log(), 0.0).sum(-1)


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
