"""The rows that are being decoded: canvases, places in them, counters. Slots are filled, emptied and filled again."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from types import SimpleNamespace

import torch
from dare_bench.dare.decoding.caches import Place
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.cost import total_flops
from dare_bench.dare.decoding.generation import NEVER, Cost, Generation
from dare_bench.dare.decoding.plan import KINDS
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed
from torch import Tensor

_PER_SLOT = (
    "seeds", "prompt", "canvas", "start", "end", "view", "block", "steps", "masks", "extra", "posts", "unroll", "step",
    "committed",
)  # fmt: skip
#: Counters: forwards, positions at which the head was computed.
_COSTS = ("nfe", "outputs")
#: Numbers that every forward writes.
MOVING = (*_PER_SLOT[-2:], *_COSTS)
_FLAGS = ("fresh", "cut")


class Slots:
    """State of R rows; every tensor has the slot as its first axis.

    Args:
        lm: model.
        decoder: settings with `gen_length`.
        count: R.
        layout: (size, steps) of the blocks of a canvas behind the prompt; null = uniform blocks.
    """

    def __init__(
        self, lm: DiffusionLM, decoder: DecoderConfig, count: int, layout: list[tuple[int, int]] | None
    ) -> None:
        self.lm, self.decoder, self.count, self.device = lm, decoder, count, lm.device
        self.size = decoder.block_length or lm.block_length
        self.layout = layout
        self.default_steps = decoder.steps_per_block or self.size
        self.widest = max((size for size, _ in layout), default=self.size) if layout else self.size
        # One table of numbers and one of flags: a step reads all of some rows at once (`at`).
        names = _PER_SLOT + _COSTS
        self.table = torch.zeros((len(names), count), dtype=torch.int64, device=self.device)
        self.flags = torch.zeros((len(_FLAGS), count), dtype=torch.bool, device=self.device)
        for name, line in [*zip(names, self.table, strict=True), *zip(_FLAGS, self.flags, strict=True)]:
            setattr(self, name, line)
        self.moving = self.table[-len(MOVING) :]
        self.ids = torch.zeros((count, 0), dtype=torch.int64, device=self.device)
        self.step_map = self.ids.clone()
        self.confidence = torch.zeros((count, 0), device=self.device)
        self.places: list[Place | None] = [None] * count  # None = a free slot
        self.keys: list[Hashable | None] = [None] * count
        self.edits: list[list[tuple[int, int, int, int]]] = [[] for _ in range(count)]
        self.block_starts: list[list[int]] = [[] for _ in range(count)]
        self.began = [0.0] * count
        self._ramp = torch.arange(0, device=self.device)
        #: Blocks of a block-causal canvas are whole, so that no column of theirs is behind it.
        self.whole = lm.is_block_causal and not layout and "mask_predicted" not in decoder.compat
        self._widens = "mask_predicted" in decoder.compat

    @property
    def width(self) -> int:
        """Columns of the canvases."""
        return self.ids.shape[1]

    @property
    def running(self) -> int:
        """Rows at work."""
        return sum(place is not None for place in self.places)

    def look_at(self, rows: Tensor) -> None:
        """Bring what published loops decide on the device, `extra` and `fresh`, into the places."""
        numbers = torch.stack([rows, self.extra[rows], self.fresh[rows].long()], 1)
        for slot, extra, fresh in numbers.tolist():
            place = self.place(slot)
            place.extra, place.fresh = extra, bool(fresh)

    def canvas_of(self, prompt: int) -> int:
        """Length of a canvas; the last block of a block-causal family is always whole."""
        end = prompt + int(self.decoder.gen_length or 0)
        return -(-end // self.size) * self.size if self.lm.is_block_causal else end

    def grow(self, width: int) -> None:
        """Make room for longer canvases."""
        missing = width - self.width
        if missing <= 0:
            return
        pad = (self.count, missing)
        self.ids = torch.cat([self.ids, self.ids.new_full(pad, self.lm.pad_token_id)], 1)
        self.step_map = torch.cat([self.step_map, self.step_map.new_full(pad, NEVER)], 1)
        self.confidence = torch.cat([self.confidence, self.confidence.new_zeros(pad)], 1)

    def fill(self, slot: int, key: Hashable, prompt: Sequence[int], seed: int) -> None:
        """Put a prompt into a free slot; `open_block` comes next."""
        canvas = self.canvas_of(len(prompt))
        self.grow(canvas)
        behind = [self.lm.mask_token_id] * (canvas - len(prompt)) + [self.lm.pad_token_id] * (self.width - canvas)
        self.ids[slot] = torch.tensor([*prompt, *behind], device=self.device)
        self.step_map[slot], self.confidence[slot] = NEVER, 0
        first = len(prompt) // self.size * self.size if self.lm.is_block_causal else len(prompt)
        self.table[:, slot], self.flags[:, slot] = 0, False
        self.places[slot] = Place(len(prompt), canvas, stream_seed(seed, "decode"), end=first)
        self.keys[slot], self.edits[slot], self.block_starts[slot] = key, [], []
        self.began[slot] = time.perf_counter()

    def free(self, slot: int) -> None:
        """Empty a slot."""
        self.places[slot] = self.keys[slot] = None

    def place(self, slot: int) -> Place:
        """Where a running row stands."""
        place = self.places[slot]
        assert place is not None
        return place

    def open_block(self, rows: Sequence[int]) -> None:
        """Move some rows to their next block."""
        numbers = []
        for slot in rows:
            place = self.place(slot)
            place.stored = max(place.stored, place.start)
            place.start, place.block, place.fresh, place.extra = place.end, place.block + 1, True, 0
            place.steady = None
            size, steps = self.size, self.default_steps
            if self.layout:
                size, steps = self.layout[min(place.block, len(self.layout) - 1)]
            place.end = min(place.start + size, place.canvas)
            if self.decoder.steps_per_block is None and not self.lm.is_block_causal and not self.layout:
                steps = place.end - place.start  # one token per step, also in a block that the canvas cuts
            place.steps = steps
            # Under `mask_predicted` masks of earlier blocks go on competing.
            place.view = place.prompt if self._widens else place.start
            begin = max(place.start, place.prompt)
            place.masks = place.end - begin
            if self.decoder.early_stop == "fill":  # it may hold end tokens already
                place.masks = int((self.ids[slot, begin : place.end] == self.lm.mask_token_id).sum())
            self.block_starts[slot].append(max(place.start - place.prompt, 0))
            numbers.append(
                (
                    place.seed,
                    place.prompt,
                    place.canvas,
                    place.start,
                    place.end,
                    place.view,
                    place.block,
                    steps,
                    place.masks,
                )
            )
        index = torch.tensor(rows, device=self.device)
        flat = [number for column in zip(*numbers, strict=True) for number in column]
        flat += [0] * (len(_PER_SLOT) * len(rows) - len(flat))  # what is counted in a block begins at 0
        written = torch.tensor(flat, dtype=torch.int64, device=self.device).view(len(_PER_SLOT), -1)
        self.table[: len(_PER_SLOT)].index_copy_(1, index, written)
        self.fresh.index_fill_(0, index, True)

    def at(self, rows: Tensor) -> SimpleNamespace:
        """A copy of every number of some rows, by name: [A] each."""
        return SimpleNamespace(**dict(zip(_PER_SLOT + _COSTS, self.table.index_select(1, rows).unbind(), strict=True)))

    def block_columns(self, now: SimpleNamespace) -> tuple[Tensor, Tensor]:
        """Columns that may change [A, b], and which of them are behind the prompt and before the block's end."""
        count = int((now.end - now.view).max()) if self._widens else self.widest
        columns = now.view[:, None] + self.ramp(max(count, 1))
        inside = columns < now.end[:, None]
        if self.lm.is_block_causal:  # blocks count from the canvas' start: the first may begin in the prompt
            inside &= columns >= now.prompt[:, None]
        return columns, inside

    def token(self, rows: Tensor, columns: Tensor, *, within: bool = False) -> Tensor:
        """Tokens at some columns [A, b]; columns behind the canvases repeat the last one. `within`: there are none."""
        if not within:
            columns = columns.clamp(max=self.width - 1)
        return self.ids.index_select(0, rows).gather(1, columns)

    def ramp(self, count: int) -> Tensor:
        """0 ... count - 1, a view of a buffer."""
        if count > len(self._ramp):
            self._ramp = torch.arange(max(count, self.width), device=self.device)
        return self._ramp[:count]

    def take(self, slot: int) -> Generation:
        """Empty a slot and hand out what it decoded."""
        place = self.place(slot)
        begin, end = place.prompt, place.end
        token_ids = self.ids[slot, begin:end].tolist()
        stops = self.lm.stop_token_ids
        stop = next((i for i, token in enumerate(token_ids) if token in stops), len(token_ids))
        step_map = self.step_map[slot, begin:end].tolist()
        nfe, rows_fed = place.nfe, 2 if self.decoder.cfg_scale else 1
        cost = Cost(
            nfe=nfe,
            row_forwards=nfe * rows_fed,
            positions_fed=place.fed * rows_fed,
            kv_read=place.read * rows_fed,
            tokens_committed=sum(when >= 0 for when in step_map),
            tokens_text=stop,
            edits=len(self.edits[slot]),
            flops=float(total_flops(self.lm.dims, place.fed, place.read, int(self.outputs[slot]))) * rows_fed,
            wall_s=time.perf_counter() - self.began[slot],
        )
        self.free(slot)
        return Generation(
            token_ids=token_ids,
            text_ids=token_ids[:stop],
            step_map=step_map,
            confidence=[round(value, 6) for value in self.confidence[slot, begin:end].tolist()],
            block_starts=self.block_starts[slot],
            kinds=[KINDS[code] for code in place.kinds],
            finish_reason="stop" if stop < len(token_ids) else "length",
            cost=cost,
            edits=self.edits[slot],
        )
