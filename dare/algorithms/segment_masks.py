"""Masks over the blocks of a response: part of every block is hidden at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dare_bench.dare.algorithms.base import Batch, Context
from dare_bench.dare.randomness import uniform
from torch import Tensor


def segments_of(batch: Batch, *, origin: str = "global") -> Tensor:
    """Blocks of the response positions, int64 [B, S], counted from the first block that holds any (0 before it).

    Args:
        batch: with its block length.
        origin: the grid starts at position 0 (``global``) or behind the prompt (``response``).

    Raises:
        ValueError: for an unknown origin.
    """
    columns = torch.arange(batch.ids.shape[1])
    prompts = batch.prompt_lengths[:, None]
    if origin == "global":
        steps = columns // batch.block_length - prompts // batch.block_length
    elif origin == "response":
        steps = (columns - prompts).div(batch.block_length, rounding_mode="floor")
    else:
        raise ValueError(f"unknown block origin {origin!r}; allowed: global, response")
    return steps.clamp(min=0)


def segment_sizes(allowed: Tensor, segments: Tensor) -> Tensor:
    """Allowed positions per segment.

    Args:
        allowed: bool [B, S].
        segments: int64 [B, S].

    Returns:
        int64 [B, n], n segments at most.
    """
    width = int(segments.max()) + 1
    return torch.zeros(len(segments), width, dtype=torch.int64).scatter_add(1, segments, allowed.long())


def mask_of_segment_counts(seeds: list[int], counts: Tensor, segments: Tensor, allowed: Tensor) -> Tensor:
    """Mask exactly so many allowed positions of each segment, uniformly without replacement.

    Args:
        seeds: [B] row seeds.
        counts: int64 [B, n], at most the segment's allowed positions.
        segments: int64 [B, S], not decreasing over the allowed positions.
        allowed: bool [B, S].

    Returns:
        bool [B, S].
    """
    keys = (uniform(seeds, allowed.shape[1]) + segments).masked_fill(~allowed, torch.inf)
    rank = keys.argsort(dim=1, stable=True).argsort(1)
    sizes = segment_sizes(allowed, segments)
    begin = sizes.cumsum(1) - sizes
    return (rank - begin.gather(1, segments) < counts.gather(1, segments)) & allowed


def all_block_masks(
    context: Context, batch: Batch, allowed: Tensor, draws: int, *, origin: str = "global"
) -> Iterator[tuple[Tensor, Tensor]]:
    """Masks that hide part of every block at once, and their weights B_b / k_b.

    The levels of all (draw, block) cells of a response lie on one even grid with a random offset: over the draws each block
    meets every part of the range, and each level is uniform.

    Args:
        context: gives the seeds.
        batch: block responses.
        allowed: bool [B, S], positions that may be masked.
        draws: masks per response (N).
        origin: of the grid, as in `segments_of`.

    Yields:
        masked bool [B, S] with at least one position in every block that has an allowed one, weight float64 [B, S].

    Source:
        arXiv 2602.08676; levels as in DARE.
    """
    segments = segments_of(batch, origin=origin)
    sizes = segment_sizes(allowed, segments)
    used = sizes > 0
    cells = (used.sum(1, keepdim=True) * draws).clamp(min=1)
    offset = uniform(context.seeds("block level", batch), 1)
    for draw in range(draws):
        cell = draw * used.sum(1, keepdim=True) + used.long().cumsum(1) - 1
        level = (offset + cell / cells).remainder(1.0)
        counts = torch.minimum((level * sizes).long() + 1, sizes)
        masked = mask_of_segment_counts(context.seeds(f"block mask {draw}", batch), counts, segments, allowed)
        yield masked, segment_weights(counts, sizes, segments)


def segment_weights(counts: Tensor, sizes: Tensor, segments: Tensor) -> Tensor:
    """Weight of each position, B_b / k_b of its block, float64 [B, S]; 0 in blocks without a masked position.

    Args:
        counts: int64 [B, n], masked positions per block.
        sizes: int64 [B, n], allowed positions per block.
        segments: int64 [B, S].
    """
    return torch.where(counts > 0, sizes.double() / counts.clamp(min=1), 0.0).gather(1, segments)
