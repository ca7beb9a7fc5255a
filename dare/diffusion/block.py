"""Block diffusion layouts: from corrupted sequences to the rows of the doubled input ``[noisy ; clean]``."""

from __future__ import annotations

from dataclasses import replace

import torch
from dare_bench.dare.algorithms.base import Batch, Rows
from torch import Tensor


def response_window(prompt_lengths: Tensor, lengths: Tensor, block_length: int) -> tuple[Tensor, Tensor]:
    """Columns of the blocks that hold response tokens.

    Blocks lie on the grid that starts at position 0, so the first of them may begin with prompt tokens. Noisy blocks do
    not see each other: leaving out those of the prompt changes no logit of the others and saves their cost.

    Args:
        prompt_lengths, lengths: int64 [B].
        block_length: tokens per block.

    Returns:
        columns int64 [B, A] (position in the sequence) and real bool [B, A].
    """
    start = prompt_lengths.div(block_length, rounding_mode="floor") * block_length
    width = int((lengths - start).max())
    columns = start[:, None] + torch.arange(width)
    return columns, columns < lengths[:, None]


def rows_from(
    batch: Batch, noisy: Tensor, mask: Tensor, weight: Tensor, *, draw: int = 0, clean: Tensor | None = None
) -> Rows:
    """Rows of the right layout for one corrupted copy of a batch.

    Args:
        batch: clean prompts and responses; its `block_length` decides the layout (0 = full attention).
        noisy: int64 [B, S], what the network shall read.
        mask: bool [B, S], scored positions.
        weight: float [B, S].
        draw: Monte-Carlo index of the copy.
        clean: int64 [B, S], clean half of the doubled layout; default `batch.ids` (d1 also masks prompt tokens there).

    Returns:
        One row per response.
    """
    count, length = batch.ids.shape
    owner = torch.arange(count)
    draws = torch.full((count,), draw, dtype=torch.int64)
    targets = batch.ids.unsqueeze(-1)
    if not batch.block_length:
        positions = torch.arange(length).expand(count, -1)
        return Rows(noisy, targets, mask, weight, owner, draws, positions, batch.real)
    columns, real = response_window(batch.prompt_lengths, batch.lengths, batch.block_length)
    index = columns.clamp(max=length - 1)
    return Rows(
        ids=noisy.gather(1, index),
        targets=targets.squeeze(-1).gather(1, index).unsqueeze(-1),
        mask=mask.gather(1, index) & real,
        weight=weight.gather(1, index) * real,
        owner=owner,
        draw=draws,
        position_ids=columns,
        real=real,
        layout="noisy_clean",
        block_length=batch.block_length,
        context=batch.ids if clean is None else clean,
        context_real=batch.real,
    )


def concatenate(parts: list[Rows]) -> Rows:
    """Stack rows of one layout (several draws of one batch); narrower parts are padded at the right."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if any((part.layout, part.block_length, part.temperature) != _kind(first) for part in parts):
        raise ValueError("rows of unlike layout, block length or temperature cannot be one batch")
    names = ("ids", "targets", "mask", "weight", "owner", "draw", "position_ids", "real", "context", "context_real")
    return replace(first, **{name: _stack([getattr(part, name) for part in parts]) for name in names})


def _kind(rows: Rows) -> tuple[str, int, float]:
    return rows.layout, rows.block_length, rows.temperature


def _stack(values: list[Tensor | None]) -> Tensor | None:
    if values[0] is None:
        return None
    if values[0].dim() > 1:
        shape = [max(value.shape[axis] for value in values) for axis in range(1, values[0].dim())]
        values = [_widen(value, shape) for value in values]
    return torch.cat(values)


def _widen(value: Tensor, shape: list[int]) -> Tensor:
    if list(value.shape[1:]) == shape:
        return value
    wide = value.new_zeros(len(value), *shape)
    wide[tuple(slice(size) for size in value.shape)] = value
    return wide
