"""The rows that are being decoded: canvases, places in them, counters. Slots are filled, emptied and filled again."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from types import SimpleNamespace

import torch
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.cost import total_flops
from dare_bench.dare.decoding.generation import NEVER, Cost, Generation
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed
from torch import Tensor

#: Kinds of forwards, by code.
KINDS = ("denoise", "prefill+denoise", "store+denoise", "refresh+denoise", "prefill", "store", "wasted")
_PER_SLOT = (
    "prompt", "canvas", "start", "end", "view", "block", "steps", "masks", "posts", "stored", "seeds", "extra", "unroll",
    "step", "committed",
)  # fmt: skip
#: Counters: forwards, positions fed, query x key pairs, positions at which the head was computed.
_COSTS = ("nfe", "fed", "read", "outputs")
#: Numbers that every forward writes.
MOVING = (*_PER_SLOT[-2:], *_COSTS)
_FLAGS = ("active", "fresh", "built", "cut")


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
        self.log = torch.zeros((count, 0), dtype=torch.int64, device=self.device)
        self._noted = 0
        self.keys: list[Hashable | None] = [None] * count
        self.edits: list[list[tuple[int, int, int, int]]] = [[] for _ in range(count)]
        self.block_starts: list[list[int]] = [[] for _ in range(count)]
        self.began = [0.0] * count
        self._ramp = torch.arange(max(self.widest, 1), device=self.device)
        self._widens = "mask_predicted" in decoder.compat

    @property
    def width(self) -> int:
        """Columns of the canvases."""
        return self.ids.shape[1]

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
        start = {
            "prompt": len(prompt),
            "canvas": canvas,
            "end": first,
            "block": -1,
            "seeds": stream_seed(seed, "decode"),
        }
        numbers = [start.get(name, 0) for name in _PER_SLOT + _COSTS]
        self.table[:, slot] = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        self.flags[:, slot] = False
        self.active[slot] = True
        self.keys[slot], self.edits[slot], self.block_starts[slot] = key, [], []
        self.began[slot] = time.perf_counter()

    def open_block(self, rows: Tensor) -> None:
        """Move some rows to their next block."""
        now = self.at(rows)
        now.stored = torch.maximum(now.stored, now.start)
        now.start, now.block = now.end, now.block + 1
        if self.layout:
            table = torch.tensor(self.layout, device=self.device)
            index = now.block.clamp(max=len(self.layout) - 1)
            size, steps = table[index, 0], table[index, 1]
        else:
            size = torch.full_like(rows, self.size)
            steps = torch.full_like(rows, self.default_steps)
        now.end = torch.minimum(now.start + size, now.canvas)
        if self.decoder.steps_per_block is None and not self.lm.is_block_causal and not self.layout:
            steps = now.end - now.start  # one token per step, also in a block that the canvas cuts
        now.steps = steps
        # Under `mask_predicted` masks of earlier blocks go on competing.
        now.view = now.prompt if "mask_predicted" in self.decoder.compat else now.start
        now.step = now.committed = now.posts = now.extra = now.unroll = torch.zeros_like(rows)
        if self.decoder.early_stop == "fill":  # a later block may hold end tokens already
            columns, inside = self.block_columns(now)
            masked = (self.token(rows, columns) == self.lm.mask_token_id) & inside
            now.masks = (masked & (columns >= now.start[:, None])).sum(1)
        else:
            now.masks = now.end - torch.maximum(now.start, now.prompt)
        self.table[:, rows] = torch.stack([getattr(now, name) for name in _PER_SLOT + _COSTS])
        self.fresh[rows] = True
        offsets = (now.start - now.prompt).clamp(min=0)
        for row, offset in zip(rows.tolist(), offsets.tolist(), strict=True):
            self.block_starts[row].append(offset)

    def at(self, rows: Tensor) -> SimpleNamespace:
        """A copy of every number and flag of some rows, by name: [A] each."""
        numbers = zip(_PER_SLOT + _COSTS, self.table.index_select(1, rows).unbind(), strict=True)
        flags = zip(_FLAGS, self.flags.index_select(1, rows).unbind(), strict=True)
        return SimpleNamespace(**dict(numbers), **dict(flags))

    def block_columns(self, now: SimpleNamespace) -> tuple[Tensor, Tensor]:
        """Columns that may change [A, b], and which of them are behind the prompt and before the block's end."""
        ramp = self._ramp
        if self._widens:
            ramp = torch.arange(max(int((now.end - now.view).max()), 1), device=self.device)
        columns = now.view[:, None] + ramp
        inside = columns < now.end[:, None]
        if self.lm.is_block_causal:  # blocks count from the canvas' start: the first may begin in the prompt
            inside &= columns >= now.prompt[:, None]
        return columns, inside

    def token(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Tokens at some columns [A, b]; columns behind the canvases repeat the last one."""
        return self.ids.index_select(0, rows).gather(1, columns.clamp(max=self.width - 1))

    def note(self, rows: Tensor, position: Tensor, kinds: Tensor) -> None:
        """Log the kind of a forward, which is the row's `position`-th."""
        self._noted += 1
        if self._noted > self.log.shape[1]:  # a bound that needs no look at the device
            self._noted = int(position.max()) + 1
            more = max(self._noted - self.log.shape[1], 0)
            self.log = torch.cat([self.log, self.log.new_zeros((self.count, more + 64 if more else 0))], 1)
        self.log[rows, position] = kinds

    def take(self, slot: int) -> Generation:
        """Empty a slot and hand out what it decoded."""
        now = dict(zip(_PER_SLOT + _COSTS, self.table[:, slot].tolist(), strict=True))
        begin, end = now["prompt"], now["end"]
        token_ids = self.ids[slot, begin:end].tolist()
        stops = self.lm.stop_token_ids
        stop = next((i for i, token in enumerate(token_ids) if token in stops), len(token_ids))
        step_map = self.step_map[slot, begin:end].tolist()
        nfe, rows_fed = now["nfe"], 2 if self.decoder.cfg_scale else 1
        cost = Cost(
            nfe=nfe,
            row_forwards=nfe * rows_fed,
            positions_fed=now["fed"] * rows_fed,
            kv_read=now["read"] * rows_fed,
            tokens_committed=sum(when >= 0 for when in step_map),
            tokens_text=stop,
            edits=len(self.edits[slot]),
            flops=float(total_flops(self.lm.dims, now["fed"], now["read"], now["outputs"])) * rows_fed,
            wall_s=time.perf_counter() - self.began[slot],
        )
        self.active[slot], self.keys[slot] = False, None
        return Generation(
            token_ids=token_ids,
            text_ids=token_ids[:stop],
            step_map=step_map,
            confidence=[round(value, 6) for value in self.confidence[slot, begin:end].tolist()],
            block_starts=self.block_starts[slot],
            kinds=[KINDS[code] for code in self.log[slot, :nfe].tolist()],
            finish_reason="stop" if stop < len(token_ids) else "length",
            cost=cost,
            edits=self.edits[slot],
        )
