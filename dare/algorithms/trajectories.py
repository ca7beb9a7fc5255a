"""Denoising trajectories as tensors: steps are ranked, merged and weighted, and become the rows that replay them.

A step map tells which forward committed a token. Since a committed token never changes, it is all that is needed to rebuild
what that forward read: tokens of earlier steps, masks elsewhere. On block families every block is at the same local step in
one row, since noisy blocks of the doubled layout do not see each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from dare_bench.dare.algorithms.base import Batch, Rows
from dare_bench.dare.algorithms.step_weights import joint
from dare_bench.dare.diffusion import block, corruption
from torch import Tensor


def step_map(batch: Batch, algorithm: str) -> Tensor:
    """The step map int64 [B, S] of a rollout.

    Args:
        batch: with its trace.
        algorithm: that asks, for the message.

    Raises:
        ValueError: the batch has no trace, or one that knows no step (of engines that do not tell them).
    """
    allowed = (
        f"{algorithm} replays rollouts; allowed are engines that tell the step of each token, like the built-in one"
    )
    if batch.trace is None:
        raise ValueError(f"trace: None; {allowed}")
    if bool(batch.counted.any()) and not bool((batch.trace.step_map >= 0).any()):
        raise ValueError(f"step_map: the step of no token is known; {allowed}")
    return batch.trace.step_map


def decoding_blocks(batch: Batch) -> Tensor:
    """Number of the block in which a position was decoded, int64 [B, S].

    Block families: the grid from position 0. Full attention: the blocks of the rollout's decoder, or one block where the
    trace does not tell them.
    """
    if batch.block_length:
        return torch.arange(batch.ids.shape[1]).div(batch.block_length, rounding_mode="floor").expand(batch.ids.shape)
    recorded = None if batch.trace is None else batch.trace.blocks
    return torch.zeros_like(batch.ids) if recorded is None else recorded


def step_ranks(steps: Tensor, segments: Tensor | None = None, size: int = 1) -> Tensor:
    """Number the steps of each segment of a row densely from 0: steps that committed nothing are gone.

    Args:
        steps: int64 [B, S], any increasing numbers; negative where no step committed the token.
        segments: int64 [B, S], non-negative; default one segment per row.
        size: neighbouring steps that become one; 0 = all of a segment. A merged step shows a token as masked until all of
            the step is committed.

    Returns:
        int64 [B, S], -1 where `steps` is negative.

    Source:
        TraceRL (arXiv 2509.06949) shrinkage; yjyddq/DARE ``step_merge`` (size 0).
    """
    chosen = steps >= 0
    row, column = chosen.nonzero(as_tuple=True)
    out = torch.full_like(steps, -1)
    if not len(row):
        return out
    head = row if segments is None else joint(row, segments[row, column])
    (keys, inverse), count = joint(head, steps[row, column]).unique(return_inverse=True), int(steps.max()) + 1
    place, segment = torch.arange(len(keys)), keys // count
    starts = torch.ones_like(place, dtype=torch.bool)
    starts[1:] = segment[1:] != segment[:-1]
    rank = place - torch.where(starts, place, 0).cummax(0).values
    out[row, column] = (rank // size if size else torch.zeros_like(rank))[inverse]
    return out


def merged_steps(steps: Tensor, segments: Tensor, size: int) -> Tensor:
    """Merge neighbouring steps within segments and number them densely over the row; no step spans two segments.

    Args:
        steps: int64 [B, S], as in `step_ranks`.
        segments: int64 [B, S], in the order in which they were decoded.
        size: as in `step_ranks`.
    """
    local = step_ranks(steps, segments, size)
    width = int(local.max()) + 1 if local.numel() else 1
    return step_ranks(torch.where(local >= 0, segments * max(width, 1) + local, -1))


def left_to_right(batch: Batch) -> Tensor:
    """Steps of strict left-to-right decoding, int64 [B, S], -1 outside of responses.

    Full attention: the place of a token in its response. Block families: its place among the response tokens of its block,
    so that all blocks of a response share a row.
    """
    columns = torch.arange(batch.ids.shape[1]).expand(batch.ids.shape)
    blocks = decoding_blocks(batch) if batch.block_length else None
    return step_ranks(torch.where(batch.response, columns, -1), blocks)


def row_pairs(steps: Tensor, targets: Tensor) -> Tensor:
    """The rows that a trajectory makes: (step, response) with at least one target, int64 [N, 2], ordered.

    Args:
        steps: int64 [B, S], of `step_ranks` and its like.
        targets: bool [B, S].
    """
    owner, place = (targets & (steps >= 0)).nonzero(as_tuple=True)
    keys = (steps[owner, place] * len(steps) + owner).unique()
    return torch.stack([keys // len(steps), keys % len(steps)], 1)


def step_rows(
    batch: Batch, steps: Tensor, targets: Tensor, weight: Tensor, *, rows_per_part: int = 256, temperature: float = 1.0
) -> Iterator[Rows]:
    """Rows that replay a trajectory: one per (step, response) with targets, made part by part, earliest steps first.

    A row reads the prompt, the tokens of earlier steps, and masks: for its own and later steps, and where no step committed
    a token. Its targets are the tokens of its step.

    Args:
        batch: responses.
        steps: int64 [B, S]: whole-row steps under full attention, steps within blocks for block families.
        targets: bool [B, S], tokens that are scored.
        weight: float [B, S].
        rows_per_part: rows that are made at a time.
        temperature: of the scores.

    Yields:
        Rows whose `draw` is the step. A batch without targets gives one row without any.
    """
    pairs = row_pairs(steps, targets)
    if not len(pairs):
        pairs, targets = torch.zeros(1, 2, dtype=torch.int64), torch.zeros_like(targets)
    for part in pairs.split(max(rows_per_part, 1)):
        step, owner = part.unbind(1)
        own = steps[owner]
        picked = _picked(batch, owner)
        hidden = picked.response & ((own < 0) | (own >= step[:, None]))
        noisy = corruption.apply_mask(picked.ids, hidden, batch.mask_token_id)
        rows = block.rows_from(picked, noisy, targets[owner] & (own == step[:, None]), weight[owner])
        yield replace(rows, owner=owner, draw=step, temperature=temperature)


def longest_response(batch: Batch) -> int:
    """Length of the longest response canvas of a batch; under full attention that of all."""
    return max(int((batch.lengths - batch.prompt_lengths).max()), 1)


def _picked(batch: Batch, owner: Tensor) -> Batch:
    """The responses `owner` of a batch, as far as rows are made from them."""
    return replace(
        batch,
        ids=batch.ids[owner],
        prompt_lengths=batch.prompt_lengths[owner],
        lengths=batch.lengths[owner],
        counted=batch.counted[owner],
        groups=batch.groups[owner],
        sample_ids=[batch.sample_ids[index] for index in owner.tolist()],
        rewards=None,
        chosen=None,
        trace=None,
    )
