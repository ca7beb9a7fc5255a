"""What a forward recomputes: cache policies of the decoding engine.

A policy says which positions each row feeds, and whether this forward feeds the whole canvas again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.cache import PositionCache
from dare_bench.dare.families.registry import UnknownName
from torch import Tensor


@dataclass
class Place:
    """Where some rows stand; int64 or bool [A].

    Attributes:
        start, end: the current block.
        canvas: length of the canvas.
        stored: positions already final in the cache (block cache).
        fresh: this is the first forward of the block.
        block: index of the block, 0-based.
        nfe: forwards so far.
        built: the cache has been filled once.
    """

    start: Tensor
    end: Tensor
    canvas: Tensor
    stored: Tensor
    fresh: Tensor
    block: Tensor
    nfe: Tensor
    built: Tensor


@dataclass(frozen=True)
class Window:
    """What some rows feed: positions [low, high), keys [0, keys); `full` marks forwards that feed the whole canvas."""

    low: Tensor
    high: Tensor
    keys: Tensor
    full: Tensor


@dataclass(frozen=True)
class CachePolicy:
    """A rule for what to feed.

    Attributes:
        name: as in `DecoderConfig.cache`.
        keeps: whether keys and values are kept between forwards.
        window: rule; gets the rows' places and the policy's options.
        options: of the rule.
        attention: the attention it is sound for; null = any.
        summary: one line.
    """

    name: str
    keeps: bool
    window: Callable[..., Window]
    options: Mapping[str, Any] = field(default_factory=dict)
    attention: str | None = None
    summary: str = ""


def _everything(place: Place, lead: int) -> Window:
    return Window(torch.zeros_like(place.start), place.canvas, place.canvas, torch.ones_like(place.fresh))


def _up_to_block(place: Place, lead: int) -> Window:
    return Window(torch.zeros_like(place.start), place.end, place.end, torch.ones_like(place.fresh))


def _block(place: Place, lead: int) -> Window:
    low = torch.where(place.fresh, place.stored, place.start)
    return Window(low, place.end, place.end, torch.zeros_like(place.fresh))


def _refreshed(place: Place, full: Tensor, low: Tensor, high: Tensor) -> Window:
    low = torch.where(full, 0, low.clamp(min=0))
    return Window(low, torch.where(full, place.canvas, torch.minimum(high, place.canvas)), place.canvas, full)


def _prefix(place: Place, lead: int) -> Window:
    return _refreshed(place, place.fresh, place.start - lead, place.canvas)


def _dual(place: Place, lead: int) -> Window:
    return _refreshed(place, place.fresh, place.start - lead, place.end)


def _vicinity(place: Place, lead: int, *, prefix_look: int, after_look: int, warmup_steps: int) -> Window:
    full = (place.nfe < warmup_steps) | ~place.built | (place.fresh & (place.block > 0))
    return _refreshed(place, full, place.start - max(prefix_look, lead), place.end + after_look)


_POLICIES = {
    entry.name: entry
    for entry in (
        CachePolicy("none", False, _everything, summary="Every forward feeds everything a row can see."),
        CachePolicy(
            "block", True, _block, attention="block_causal", summary="Finished blocks are kept, exactly; the block is fed."
        ),
        CachePolicy(
            "prefix", True, _prefix, attention="full",
            summary="Refreshed at every block; the rest from the block on is fed (Fast-dLLM, arXiv 2505.22618).",
        ),
        CachePolicy(
            "dual", True, _dual, attention="full",
            summary="Refreshed at every block; only the block is fed (Fast-dLLM, arXiv 2505.22618).",
        ),
        CachePolicy(
            "vicinity", True, _vicinity, {"prefix_look": 16, "after_look": 16, "warmup_steps": 4}, "full",
            "As dual, with a window around the block (dInfer, arXiv 2510.08666).",
        ),
    )
}  # fmt: skip


def policy(name: str, lm: DiffusionLM, options: Mapping[str, Any] | None = None) -> CachePolicy:
    """The policy of a name for a model.

    Args:
        name: ``auto`` or a name of the table.
        lm: decides what ``auto`` and ``none`` mean.
        options: of the policy.

    Raises:
        UnknownName: for an unknown name or option.
        ValueError: for a policy that is not sound for the model's attention.
    """
    if name == "auto":
        name = "block" if lm.is_block_causal else "none"
    if name not in _POLICIES:
        raise UnknownName("cache", name, ["auto", *_POLICIES])
    entry = _POLICIES[name]
    if entry.attention is not None and entry.attention != lm.family.attention:
        needs = {"full": "full attention", "block_causal": "block-causal attention"}
        raise ValueError(
            f"cache {name!r} needs {needs[entry.attention]}, family {lm.family.name!r} has "
            f"{needs[lm.family.attention]}; use 'auto'"
        )
    for option in options or {}:
        if option not in entry.options:
            raise UnknownName(f"option of cache {name!r}", option, list(entry.options) or ["(none)"])
    rule = _up_to_block if name == "none" and lm.is_block_causal else entry.window
    return CachePolicy(name, entry.keeps, rule, {**entry.options, **(options or {})}, entry.attention, entry.summary)


__all__ = ["CachePolicy", "Place", "PositionCache", "Window", "policy"]
