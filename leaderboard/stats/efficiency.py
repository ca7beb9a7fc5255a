"""What an answer cost: forwards, tokens per forward, tokens per second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class ForwardStats:
    """Number of function evaluations (network forwards) per answer.

    Attributes:
        mean: mean forwards per answer.
        p90: 90th percentile, linear interpolation.
        total: sum over answers.
    """

    mean: float
    p90: float
    total: int


def forward_stats(nfe: ArrayLike) -> ForwardStats:
    """Summarise forwards per answer.

    Args:
        nfe: [n] int, forwards of each answer.

    Returns:
        Mean, 90th percentile and total.

    Raises:
        ValueError: no answers.
    """
    values = np.asarray(nfe)
    if values.size == 0:
        raise ValueError("forward_stats needs at least one answer")
    return ForwardStats(float(values.mean()), float(np.percentile(values, 90)), int(values.sum()))


def tokens_per_forward(tokens: int, nfe: int) -> float | None:
    """Tokens per forward as a ratio of totals (never a mean of ratios).

    Args:
        tokens: committed tokens before the first end token, summed over answers.
        nfe: forwards, summed over the same answers.

    Returns:
        tokens / nfe, or None when nothing was run.
    """
    return tokens / nfe if nfe > 0 else None


def tokens_per_second(tokens: int, decode_wall_s: float | None) -> float | None:
    """Decoding speed at the batch size of the run.

    Args:
        tokens: committed tokens before the first end token, summed over answers.
        decode_wall_s: seconds spent decoding them (loading and scoring excluded), or None when not measured.

    Returns:
        tokens / s, or None when not measured.
    """
    return tokens / decode_wall_s if decode_wall_s else None
