"""What the running rows feed next, and which of them share a network call. All of it is known off the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from dare_bench.dare.decoding.caches import CachePolicy, Place, Window
from dare_bench.dare.families.base import DiffusionLM
from torch import Tensor

#: Kinds of forwards, by code.
KINDS = ("denoise", "prefill+denoise", "store+denoise", "refresh+denoise", "prefill", "store", "wasted")
KIND = {name: code for code, name in enumerate(KINDS)}
#: What one more network call costs beside its arithmetic, in floating point operations per layer.
CALL_FLOPS = {"cpu": 2e7, "cuda": 1e11}
#: A CPU is slower per position once the widest activation of a call leaves its cache.
CACHE_BYTES = 1 << 21


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


class Span(NamedTuple):
    """What a row feeds: positions [low, high), keys [0, keys); its slot, the kind of forward, and whether it is full."""

    low: int
    high: int
    keys: int
    slot: int
    kind: int
    full: bool


@dataclass
class Fed:
    """What a network call feeds: `spans` off the device, the rest on it, int64 [A]; `rows` are slots."""

    spans: list[Span]
    low: Tensor
    high: Tensor
    keys: Tensor
    rows: Tensor


@dataclass
class Call(Fed):
    """Rows of one or more network calls, and what their forwards are for, int64 [A]. Nobody changes its tensors."""

    kinds: Tensor
    full: Tensor

    def part(self, begin: int, end: int) -> Fed:
        """Some of its rows."""
        tensors = (self.low, self.high, self.keys, self.rows)
        return Fed(self.spans[begin:end], *[tensor[begin:end] for tensor in tensors])


class Planner:
    """Decides what rows feed.

    Args:
        lm: model.
        policy: cache policy.
        compat: published behaviour of the decoder.
    """

    def __init__(self, lm: DiffusionLM, policy: CachePolicy, compat: Mapping[str, Any]) -> None:
        self.device, self.policy = lm.device, policy
        self.lead = 0 if "dream_window" in compat else lm.family.shift
        self.is_separate = "separate_store" in compat
        self.bounds = call_positions(lm), most_positions(lm)
        self.holds = not policy.options and not compat  # a row feeds the same until its block is done
        self.widths: list[int] = []
        self.together: list[list[int]] = []
        self.call: Call | None = None

    def __call__(self, places: Sequence[Place | None]) -> tuple[Call, list[int]]:
        """The next forward of every running row, and how many neighbours share each network call."""
        spans = [place.steady or self._span(slot, place) for slot, place in enumerate(places) if place is not None]
        widths = [span.high - span.low for span in spans]
        if widths != self.widths:  # most steps feed what the last one fed
            self.widths, self.together = widths, groups(widths, *self.bounds)
        together = self.together
        spans = [spans[index] for group in together for index in group]
        if self.call is None or spans != self.call.spans:
            flat = [number for column in zip(*spans, strict=True) for number in column]
            numbers = torch.tensor(flat, dtype=torch.int64, device=self.device).view(-1, len(spans))
            self.call = Call(spans, *numbers.unbind())
        return self.call, [len(group) for group in together]

    def _span(self, slot: int, place: Place) -> Span:
        window, kind = self.policy.window(place, self.lead, **self.policy.options), KIND["denoise"]
        if self.policy.name == "block":
            if place.fresh and place.stored < place.start:
                kind = KIND["store+denoise" if place.nfe else "prefill+denoise"]
                if self.is_separate:
                    # Store what is final in a forward of its own; the block's first denoising forward comes after it.
                    window, kind = Window(place.stored, place.start, place.start, window.full), KIND["prefill"]
        elif window.full and self.policy.keeps:
            kind = KIND["refresh+denoise"]
        if place.extra > 0:
            kind = KIND["store" if self.is_separate else "wasted"]
        span = Span(window.low, window.high, window.keys, slot, kind, window.full)
        if self.holds and not place.fresh:
            place.steady = span
        return span

    def after(self, spans: Sequence[Span], places: Sequence[Place | None]) -> None:
        """Note that these forwards are done."""
        warmup = self.policy.options.get("warmup_steps", 0)
        for span in spans:
            place = places[span.slot]
            assert place is not None
            place.built |= span.full and place.nfe >= warmup
            fed = span.high - span.low
            place.nfe, place.fed, place.read = place.nfe + 1, place.fed + fed, place.read + fed * span.keys
            place.kinds.append(span.kind)
            place.fresh = False
            if span.kind == KIND["prefill"]:
                place.stored = place.start
            elif span.kind == KIND["store"]:
                place.stored = place.end
