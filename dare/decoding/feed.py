"""One forward of some rows, each with a window of its own: grouping, masks, cache slots, guidance rows."""

from __future__ import annotations

import torch
from dare_bench.dare.decoding.caches import Window
from dare_bench.dare.decoding.slots import Slots
from dare_bench.dare.families.cache import PositionCache
from torch import Tensor

#: Rows are fed together as long as nobody is padded to more than this share, or this many positions, of its own window.
PADDING_SHARE, PADDING_POSITIONS = 1.5, 32


def groups(widths: list[int]) -> list[list[int]]:
    """Rows to feed together: like widths, so that little is padding.

    Args:
        widths: positions each row feeds.

    Returns:
        Indices, each once; narrow groups first.
    """
    found: list[list[int]] = []
    for index in sorted(range(len(widths)), key=lambda i: widths[i]):
        smallest = widths[found[-1][0]] if found else 0
        if found and widths[index] <= max(smallest * PADDING_SHARE, smallest + PADDING_POSITIONS):
            found[-1].append(index)
        else:
            found.append([index])
    return [sorted(group) for group in found]


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

    def __call__(self, rows: Tensor, window: Window, columns: Tensor, scored: Tensor) -> tuple[Tensor, Tensor | None]:
        """Hidden states at the scored positions.

        Args:
            rows: int64 [A], slots.
            window: what each of them feeds.
            columns: int64 [A, b], canvas positions.
            scored: bool [A, b], those whose states are wanted.

        Returns:
            [N, d], row by row, and the same of the rows without prompt under guidance, else None.
        """
        width = int((window.high - window.low).max())
        places = window.low[:, None] + torch.arange(width, device=rows.device)
        real = places < window.high[:, None]
        ids = torch.where(real, self.slots.token(rows, places), self.lm.pad_token_id)
        wanted = torch.zeros_like(real)
        row, place = scored.nonzero(as_tuple=True)
        wanted[row, (columns - window.low[:, None])[row, place]] = True
        keys = int(window.keys.max())
        stored = torch.where(real, places, self.slots.width)
        if self.guided:
            blank = torch.where(places < self.slots.prompt[rows][:, None], self.lm.mask_token_id, ids)
            blank = torch.where(real, blank, self.lm.pad_token_id)
            ids = torch.cat([ids, blank])
            places, stored, wanted, real = (torch.cat([part, part]) for part in (places, stored, wanted, real))
            rows = torch.cat([rows, rows + self.slots.count])
            window = Window(*(torch.cat([part, part]) for part in vars(window).values()))
        cache = self._ready()
        if cache is not None:
            cache.aim(rows, stored, keys)
        mask: Tensor | str = self._mask(places, real, window, keys)
        hidden = self.lm.hidden(ids, mask=mask, position_ids=places, positions=wanted, cache=cache)
        if not self.guided:
            return hidden, None
        half = len(hidden) // 2
        return hidden[:half], hidden[half:]

    def _mask(self, places: Tensor, real: Tensor, window: Window, keys: int) -> Tensor | str:
        if not self.lm.is_block_causal and bool((window.keys == keys).all()):
            return "full"  # nothing to close: attention without a mask is faster
        seen = torch.arange(keys, device=places.device)
        allowed = (seen < window.keys[:, None])[:, None, :]
        if self.lm.is_block_causal:
            allowed = allowed & (places[:, :, None] // self.slots.size >= seen // self.slots.size)
        return allowed[:, None]
