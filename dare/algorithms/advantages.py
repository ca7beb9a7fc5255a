"""Group-relative advantages as pure functions."""

from __future__ import annotations

import torch
from torch import Tensor

KINDS = ("mean", "std", "loo", "zpop")


def group_advantages(rewards: Tensor, groups: Tensor, kind: str, *, delta: float = 1e-6) -> Tensor:
    """Advantage of each response within its prompt group.

    Args:
        rewards: float [B].
        groups: int64 [B], group of each response.
        kind: ``mean`` r - mean; ``std`` (r - mean) / (std + delta), std with ddof 1; ``loo`` r minus the mean of the
            others; ``zpop`` (r - mean) / population std. Equal rewards give exactly 0 in all four.
        delta: added to the standard deviation (DARE 1e-6, MDPO 1e-4).

    Returns:
        float [B].

    Raises:
        ValueError: for an unknown kind, or ``std`` or ``zpop`` with a group of one.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown advantage {kind!r}; allowed: {', '.join(KINDS)}")
    _, index = groups.unique(return_inverse=True)
    size = torch.zeros(int(index.max()) + 1, dtype=rewards.dtype).index_add(0, index, torch.ones_like(rewards))
    if kind in ("std", "zpop") and bool((size < 2).any()):
        raise ValueError(f"advantage {kind!r} needs at least 2 responses per prompt; use 'mean' or a larger group_size")
    mean = torch.zeros_like(size).index_add(0, index, rewards) / size
    centred = rewards - mean[index]
    # The mean of equal numbers may be off by one rounding: such a group must still give exactly 0.
    low = torch.full_like(size, torch.inf).scatter_reduce(0, index, rewards, "amin")
    high = torch.full_like(size, -torch.inf).scatter_reduce(0, index, rewards, "amax")
    centred = torch.where((low == high)[index], torch.zeros_like(centred), centred)
    if kind == "mean":
        return centred
    if kind == "loo":
        return centred * (size / (size - 1).clamp(min=1))[index]
    squares = torch.zeros_like(size).index_add(0, index, centred.square())
    if kind == "zpop":
        deviation = (squares / size).sqrt()[index]
        return torch.where(deviation > 0, centred / deviation.clamp(min=torch.finfo(centred.dtype).tiny), 0.0)
    return centred / ((squares / (size - 1)).sqrt() + delta)[index]
