"""What the files of ELBO algorithms share: batches of one prompt length, rows whose weighted sums are recorded values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from dare_bench.dare.algorithms.base import Batch, Context, Rows
from torch import Tensor


def batch_of(
    ids: Tensor,
    prompts: Tensor | int,
    mask_token_id: int,
    *,
    lengths: Tensor | None = None,
    counted: Tensor | None = None,
    block_length: int = 0,
    groups: Tensor | None = None,
    chosen: Sequence[bool] | None = None,
) -> Batch:
    """Recorded responses.

    Args:
        ids: int64 [B, S].
        prompts: prompt lengths, or that of all.
        mask_token_id: mask id.
        lengths: int64 [B]; default S.
        counted: bool [B, S]; default the response.
        block_length: 0 = full attention.
        groups: int64 [B]; default one group.
        chosen: preferred responses, for pairs.
    """
    count, width = ids.shape
    batch = Batch(
        ids=ids,
        prompt_lengths=torch.full((count,), prompts) if isinstance(prompts, int) else prompts,
        lengths=torch.full((count,), width) if lengths is None else lengths,
        counted=torch.zeros_like(ids, dtype=torch.bool),
        sample_ids=[str(row) for row in range(count)],
        groups=torch.zeros(count, dtype=torch.int64) if groups is None else groups,
        mask_token_id=mask_token_id,
        eos_token_id=mask_token_id - 1,
        block_length=block_length,
        chosen=None if chosen is None else torch.tensor(chosen),
    )
    batch.counted = batch.response if counted is None else counted
    return batch


def context_of(batch: Batch) -> Context:
    """Where a loss of the batch is computed: in a later pass, when old log-probabilities differ."""
    return Context(run_seed=0, inner=1, inner_iterations=2, batch=batch)


def counted_batch(counted: Tensor) -> Batch:
    """Responses without a prompt of which nothing is known but which positions count, bool [B, S]."""
    return batch_of(torch.zeros(counted.shape, dtype=torch.int64), 0, 1, counted=counted)


def rows_of(values: Tensor) -> tuple[Rows, Tensor]:
    """Rows of weight 1 whose estimates are given values.

    Args:
        values: [B, m] or [B, m, S] parts of them.

    Returns:
        Rows, draw after draw, and their log-probabilities [N, S, 1], differentiable with respect to the values.
    """
    parts = (values[..., None] if values.dim() == 2 else values).transpose(0, 1)
    draws, count, width = parts.shape
    logps = parts.reshape(draws * count, width, 1)
    full = torch.ones(draws * count, width, dtype=torch.bool)
    zeros = torch.zeros(draws * count, width, dtype=torch.int64)
    rows = Rows(
        ids=zeros,
        targets=zeros[..., None],
        mask=full,
        weight=full.double(),
        owner=torch.arange(count).repeat(draws),
        draw=torch.arange(draws).repeat_interleave(count),
        position_ids=torch.arange(width).expand(zeros.shape),
        real=full,
    )
    return rows, logps
