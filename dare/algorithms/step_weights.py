"""Weights of the tokens of a trajectory: what counts alike, responses, steps or tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def balanced_weights(groups: Tensor, counted: Tensor, owners: Tensor | None = None) -> Tensor:
    """Weights in which every owner counts alike, in it every group, and in that every token. They sum to 1.

    Args:
        groups: int64 [B, S], non-negative where counted; equal numbers of unlike owners are unlike groups.
        counted: bool [B, S], tokens that have a weight.
        owners: int64 [B, S], non-negative; default one owner of all groups.

    Returns:
        float64 [B, S]: 1 / (owners x groups of the owner x tokens of the group), 0 where not counted.
    """
    group = groups[counted]
    owner = torch.zeros_like(group) if owners is None else owners[counted]
    out = torch.zeros(groups.shape, dtype=torch.float64)
    if len(group):
        keys, inverse, tokens = joint(owner, group).unique(return_inverse=True, return_counts=True)
        own, of, parts = (keys // (group.max() + 1)).unique(return_inverse=True, return_counts=True)
        out[counted] = (1.0 / (len(own) * parts[of] * tokens).double())[inverse]
    return out


def transition_weights(local: Tensor, blocks: Tensor, counted: Tensor) -> Tensor:
    """Block-parallel weights: every response counts alike, in it every (block, local step), in that every token.

    Args:
        local: int64 [B, S], steps numbered within blocks.
        blocks: int64 [B, S].
        counted: bool [B, S].

    Returns:
        float64 [B, S]; those of a response sum to 1 / (responses with a counted token).

    Source:
        yjyddq/DARE `compute_cj_block_step_token_weights`.
    """
    owners = torch.arange(len(local))[:, None].expand(local.shape)
    return balanced_weights(blocks * (local.max().clamp(min=0) + 1) + local, counted, owners)


def joint(first: Tensor, second: Tensor) -> Tensor:
    """One number for each pair of non-negative ones, ordered by the first, then by the second."""
    return first * (second.max() + 1) + second
