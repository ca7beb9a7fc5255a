"""One forward of some rows, each with a window of its own: grouping, masks, cache slots, guidance rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from dare_bench.dare.decoding.caches import Window
from dare_bench.dare.decoding.slots import Slots
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.cache import PositionCache
from torch import Tensor

#: What one more network call costs beside its arithmetic, in floating point operations per layer.
CALL_FLOPS = {"cpu": 2e7, "cuda": 1e11}
#: A CPU is slower per position once the widest activation of a call leaves its cache.
CACHE_BYTES = 1 << 21
#: What a row feeds: positions [low, high), keys [0, keys); and its slot.
Span = tuple[int, int, int, int]


def call_positions(lm: DiffusionLM) -> float:
    """How many more positions cost as much as one more network call."""
    flops = CALL_FLOPS["cpu" if lm.device.type == "cpu" else "cuda"]
    return flops * lm.dims.layers / (2 * lm.dims.linear)


def most_positions(lm: DiffusionLM) -> int | None:
    """How many positions a network call should feed at most; null = any number."""
    if lm.device.type != "cpu":
        return None
    return max(256, CACHE_BYTES // (lm.dtype.itemsize * max(lm.dims.mlp, lm.dims.hidden)))


def groups(widths: Sequence[int], call: float, most: int | None = None) -> list[list[int]]:
    """Rows to feed together, so that padding and calls cost least: rows of like width, narrow groups first.

    Args:
        widths: positions each row feeds; a group is padded to its widest row.
        call: positions that cost as much as one more call.
        most: positions of a group, unless one row alone has more.

    Returns:
        Indices, each once.
    """
    found = _cheapest(widths, call)
    if most is None:
        return found
    parts = []
    for group in found:
        rows = max(1, most // max(widths[index] for index in group))
        count = -(-len(group) // rows)  # parts of like size
        parts += [group[len(group) * part // count : len(group) * (part + 1) // count] for part in range(count)]
    return parts


def _cheapest(widths: Sequence[int], call: float) -> list[list[int]]:
    order = sorted(range(len(widths)), key=lambda index: (widths[index], index))
    if not order or widths[order[0]] == widths[order[-1]]:
        return [order] if order else []
    # best[n]: least cost of the n narrowest rows, and where their last group begins.
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(order) + 1):
        if end < len(order) and widths[order[end]] == widths[order[end - 1]]:
            best.append((float("inf"), 0))  # equal widths stay together
            continue
        width = widths[order[end - 1]]
        best.append(min((best[begin][0] + width * (end - begin) + call, begin) for begin in range(end)))
    found, end = [], len(order)
    while end:
        begin = best[end][1]
        found.append(sorted(order[begin:end]))
        end = begin
    return found[::-1]


class Feeder:
    """Runs the network on windows of slots.

    Args:
        slots: rows.
        keeps: keys and values are kept between forwards.
    """

    def __init__(self, slots: Slots, *, keeps: bool) -> None:
        self.slots, self.lm = slots, slots.lm
        self.guided = slots.decoder.cfg_scale > 0
        self.keeps = keeps
        self.cache: PositionCache | None = None

    def _ready(self) -> PositionCache | None:
        if not self.keeps:
            return None
        # One slot more than columns: padded queries store their keys there, and nobody reads it.
        length = self.slots.width + 1
        rows = self.slots.count * (2 if self.guided else 1)
        if self.cache is None:
            self.cache = PositionCache(rows, length, self.lm.model.config)
        self.cache.grow(length)
        return self.cache

    def __call__(
        self, rows: Tensor, window: Window, spans: Sequence[Span], wanted: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states at the wanted positions.

        Args:
            rows: int64 [A], slots.
            window: what each of them feeds.
            spans: the same numbers, off the device.
            wanted: int64 [N] rows (0 ... A-1) and [N] canvas positions, row by row.

        Returns:
            [N, d], and the same of the rows without prompt under guidance, else None.
        """
        widths = {high - low for low, high, *_ in spans}
        places = window.low[:, None] + torch.arange(max(widths), device=rows.device)
        ids, stored = self.slots.token(rows, places), places
        real = None
        if len(widths) > 1:
            real = places < window.high[:, None]
            ids, stored = torch.where(real, ids, self.lm.pad_token_id), torch.where(real, places, self.slots.width)
        row, place = wanted[0], wanted[1] - window.low[wanted[0]]
        limits = window.keys
        if self.guided:
            blank = torch.where(places < self.slots.prompt[rows][:, None], self.lm.mask_token_id, ids)
            blank = blank if real is None else torch.where(real, blank, self.lm.pad_token_id)
            ids = torch.cat([ids, blank])
            places, stored, place, limits = (torch.cat([part, part]) for part in (places, stored, place, limits))
            row = torch.cat([row, row + len(rows)])
            rows = torch.cat([rows, rows + self.slots.count])
        cache = self._ready()
        if cache is not None:
            order = [slot for *_, slot in spans]
            order += [slot + self.slots.count for slot in order] if self.guided else []
            same = real is None and all(low == spans[0][0] for low, *_ in spans)
            cache.aim(rows, stored, max(keys for _, _, keys, _ in spans), order=order, same=same)
        mask = self._mask(places, limits, spans)
        hidden = self.lm.hidden(ids, mask=mask, position_ids=places, positions=(row, place), cache=cache)
        if not self.guided:
            return hidden, None
        half = len(hidden) // 2
        return hidden[:half], hidden[half:]

    def _mask(self, places: Tensor, limits: Tensor, spans: Sequence[Span]) -> Tensor | str:
        size = self.slots.size
        keys = max(keys for _, _, keys, _ in spans)
        # A row that feeds one block sees everything up to the block's end.
        closes = self.lm.is_block_causal and any(low // size != (high - 1) // size for low, high, *_ in spans)
        if not closes and all(limit == keys for _, _, limit, _ in spans):
            return "full"  # nothing to close: attention without a mask is faster
        seen = torch.arange(keys, device=places.device)
        allowed = (seen < limits[:, None])[:, None, :]
        if closes:
            allowed = allowed & (places[:, :, None] // size >= seen // size)
        return allowed[:, None]
