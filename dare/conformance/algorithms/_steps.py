"""What the files of step-wise algorithms share: rows with the log-probabilities of recorded logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from dare_bench.dare.algorithms.base import Algorithm, Batch, Context, Rows, Trace
from dare_bench.dare.algorithms.objectives import token_logps
from dare_bench.dare.diffusion.block import concatenate
from torch import Tensor

CONTEXT = Context(run_seed=0)


def batch_of(
    ids: Tensor, prompt: int, step_map: Tensor, mask_token_id: int, *, counted: Tensor | None = None,
    block_length: int = 0, groups: Tensor | None = None, rewards: Tensor | None = None,
) -> Batch:  # fmt: skip
    """Recorded responses with their step maps.

    Args:
        ids: int64 [B, S].
        prompt: prompt length of all.
        step_map: int64 [B, S], negative = never committed.
        mask_token_id: mask id.
        counted: bool [B, S]; default everything behind the prompt.
        block_length: tokens per block; 0 = full attention.
        groups: int64 [B]; default one group.
        rewards: float [B].
    """
    count, width = ids.shape
    answers = (torch.arange(width) >= prompt).expand(ids.shape)
    return Batch(
        ids=ids,
        prompt_lengths=torch.full((count,), prompt),
        lengths=torch.full((count,), width),
        counted=answers if counted is None else counted & answers,
        sample_ids=[str(row) for row in range(count)],
        groups=torch.zeros(count, dtype=torch.int64) if groups is None else groups,
        mask_token_id=mask_token_id,
        eos_token_id=mask_token_id - 1,
        block_length=block_length,
        rewards=rewards,
        trace=Trace(torch.where(answers, step_map, -1)),
    )


def rows_of(algorithm: Algorithm, batch: Batch, *, by_response: bool = False) -> Rows:
    """All rows of a batch.

    Args:
        algorithm: that makes them.
        batch: of `batch_of`.
        by_response: response after response instead of step after step.
    """
    rows = concatenate(list(algorithm.rows(batch, CONTEXT)))
    order = torch.arange(len(rows))
    return (
        rows.select((rows.owner * (int(rows.draw.max()) + 1) + rows.draw).argsort())
        if by_response
        else rows.select(order)
    )


def logps(rows: Rows, logits_of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Log-probabilities [N, S, 1] of the rows' targets.

    Args:
        rows: scored.
        logits_of: (row int64 [M], position in the sequence int64 [M]) of the scored places -> logits [M, V].
    """
    row, column = rows.mask.nonzero(as_tuple=True)
    found = token_logps(logits_of(row, rows.position_ids[row, column]), rows.targets[row, column, 0])
    return found.new_zeros(rows.targets.shape).index_put((row, column), found[:, None])
