"""What the files of group policies share: batches from recorded ids, and log-probabilities of recorded logits."""

from __future__ import annotations

import torch
from dare_bench.dare.algorithms.base import Batch, Context
from dare_bench.dare.algorithms.objectives import token_logps
from torch import Tensor


def batch_of(
    prompt: Tensor, completion: Tensor, counted: Tensor, mask_token_id: int, *, group_size: int = 0,
    rewards: Tensor | None = None,
) -> Batch:  # fmt: skip
    """Recorded prompts and completions, all of one width.

    Args:
        prompt: int64 [B, P].
        completion: int64 [B, L].
        counted: [B, L], completion positions that count.
        mask_token_id: mask id.
        group_size: responses per prompt; 0 = one group.
        rewards: float [B].
    """
    count, width = len(prompt), prompt.shape[1] + completion.shape[1]
    return Batch(
        ids=torch.cat([prompt, completion], 1),
        prompt_lengths=torch.full((count,), prompt.shape[1]),
        lengths=torch.full((count,), width),
        counted=torch.cat([torch.zeros_like(prompt, dtype=torch.bool), counted.bool()], 1),
        sample_ids=[str(row) for row in range(count)],
        groups=torch.arange(count).div(group_size or count, rounding_mode="floor"),
        mask_token_id=mask_token_id,
        eos_token_id=mask_token_id - 1,
        rewards=rewards,
    )


def context_of(batch: Batch, inner: int = 0, inner_iterations: int = 1) -> Context:
    """The context of an inner iteration on a batch."""
    return Context(0, inner=inner, inner_iterations=inner_iterations, batch=batch)


def widened(values: Tensor, prompt: int) -> Tensor:
    """Values of completion positions [..., L] with zeros for the prompt in front, [..., P + L]."""
    return torch.cat([values.new_zeros(*values.shape[:-1], prompt), values], -1)


def completion_logps(logits: Tensor, completion: Tensor, prompt: int) -> Tensor:
    """Log-probabilities [N, P + L, 1] from logits of completion positions.

    Args:
        logits: [N, L, V].
        completion: int64 [N, L].
        prompt: P.
    """
    return widened(token_logps(logits, completion), prompt)[..., None]


def group_index(names: list[str]) -> Tensor:
    """Recorded group names as numbers, int64 [B]."""
    known = sorted(set(names))
    return torch.tensor([known.index(name) for name in names])
