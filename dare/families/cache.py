"""A K/V store whose slot is the column in the sequence: any subset of rows and positions can be fed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache


class PositionCache(Cache):
    """Keys and values of B rows, stored at their positions; a forward may feed any subset of rows and positions.

    Before a forward, `aim` says which rows and slots it feeds. The forward overwrites those slots and attends to slots
    below `end`, under the mask it is given: what is not yet final is simply overwritten by the next forward. So one
    store serves the exact cache of finished blocks (feed the block, end = its end), the prefix cache (feed from the block
    to the end of the canvas), the dual cache (feed the block, end = the canvas) and a window around the block.

    Args:
        rows: B.
        length: slots per row.
        config: the transformers config (number of layers).
    """

    def __init__(self, rows: int, length: int, config: Any) -> None:
        super().__init__(layers=[])
        self._size = (rows, length)
        self._store: list[tuple[Tensor, Tensor]] = []
        self._rows: Tensor | slice = slice(0)
        self._index: Tensor | None = None
        self._slots: Tensor | None = None
        self._run: slice | None = None
        self._end = 0

    @property
    def end(self) -> int:
        """Number of keys the next forward attends to."""
        return self._end

    def aim(
        self, rows: Tensor, slots: Tensor, end: int, *, order: Sequence[int] | None = None, run: int | None = None
    ) -> None:
        """Set the target of the next forward.

        Args:
            rows: int64 [A], in any order.
            slots: int64 [A, n], position of each fed token.
            end: slots [0, end) are returned as keys.
            order: `rows` off the device, for those who know it.
            run: first slot, where every row feeds the same run of slots.
        """
        order = rows.tolist() if order is None else order
        first = order[0] if len(order) else 0
        # Neighbours in their order: no copy of the store is needed.
        beside = list(order) == list(range(first, first + len(order)))
        self._rows = slice(first, first + len(order)) if beside else rows
        self._index, self._slots, self._end = rows[:, None], slots, end
        self._run = None
        if run is not None and beside:
            self._run = slice(run, run + slots.shape[1])

    def grow(self, length: int) -> None:
        """Make room for more slots; what is stored stays."""
        missing = length - self._size[1]
        if missing <= 0:
            return
        self._size = (self._size[0], length)
        self._store = [
            tuple(torch.cat([part, part.new_zeros(part.shape[0], missing, *part.shape[2:])], 1) for part in pair)
            for pair in self._store
        ]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store [A, heads, n, d] of one layer and return [A, heads, end, d]."""
        if layer_idx == len(self._store):
            shape = (*self._size, key_states.shape[1], key_states.shape[3])
            # Zeros, not empty: a closed key still multiplies its value by 0, and 0 x NaN is NaN.
            self._store.append((key_states.new_zeros(shape), value_states.new_zeros(shape)))
        found = []
        for store, states in zip(self._store[layer_idx], (key_states, value_states), strict=True):
            if self._run is None:
                store[self._index, self._slots] = states.transpose(1, 2)
            else:
                store[self._rows, self._run] = states.transpose(1, 2)
            found.append(store[self._rows, : self._end].transpose(1, 2))
        return found[0], found[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots in use as seen by the next forward."""
        return self._end
