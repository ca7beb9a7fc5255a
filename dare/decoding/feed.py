"""One forward of some rows, each with a window of its own: grouping, masks, cache slots, guidance rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from dare_bench.dare.decoding.plan import Fed, Span
from dare_bench.dare.decoding.slots import Slots
from dare_bench.dare.families.cache import PositionCache
from torch import Tensor


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

    def __call__(self, call: Fed, wanted: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Hidden states at the wanted positions.

        Args:
            call: A rows, and what each of them feeds.
            wanted: int64 [N] rows (0 ... A-1) and [N] canvas positions, row by row.

        Returns:
            [N, d], and the same of the rows without prompt under guidance, else None.
        """
        rows, spans, low = call.rows, call.spans, call.low
        widths = {span.high - span.low for span in spans}
        widest, lows = max(widths), {span.low for span in spans}
        places = low[:, None] + self.slots.ramp(widest)
        ids, stored = self.slots.token(rows, places, within=max(lows) + widest <= self.slots.width), places
        real = None
        if len(widths) > 1:
            real = places < call.high[:, None]
            ids, stored = torch.where(real, ids, self.lm.pad_token_id), torch.where(real, places, self.slots.width)
        row, place = wanted[0], wanted[1] - low[wanted[0]]
        limits = call.keys
        if self.guided:
            blank = torch.where(places < self.slots.prompt[rows][:, None], self.lm.mask_token_id, ids)
            blank = blank if real is None else torch.where(real, blank, self.lm.pad_token_id)
            ids = torch.cat([ids, blank])
            places, stored, place, limits = (torch.cat([part, part]) for part in (places, stored, place, limits))
            row = torch.cat([row, row + len(rows)])
            rows = torch.cat([rows, rows + self.slots.count])
        cache = self._ready()
        if cache is not None:
            order = [span.slot for span in spans]
            order += [slot + self.slots.count for slot in order] if self.guided else []
            run = spans[0].low if len(widths) == len(lows) == 1 else None
            cache.aim(rows, stored, max(span.keys for span in spans), order=order, run=run)
        mask = self._mask(places, limits, spans)
        hidden = self.lm.hidden(ids, mask=mask, position_ids=places, positions=(row, place), cache=cache)
        if not self.guided:
            return hidden, None
        half = len(hidden) // 2
        return hidden[:half], hidden[half:]

    def _mask(self, places: Tensor, limits: Tensor, spans: Sequence[Span]) -> Tensor | str:
        size = self.slots.size
        ends = {span.keys for span in spans}
        # A row that feeds one block sees everything up to the block's end.
        closes = self.lm.is_block_causal and any([span.low // size != (span.high - 1) // size for span in spans])
        if not closes and len(ends) == 1:
            return "full"  # nothing to close: attention without a mask is faster
        seen = self.slots.ramp(max(ends))
        allowed = (seen < limits[:, None])[:, None, :]
        if closes:
            allowed = allowed & (places[:, :, None] // size >= seen // size)
        return allowed[:, None]
