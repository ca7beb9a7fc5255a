"""What a forward recomputes: cache policies of the decoding engine.

A policy says which positions each row feeds, and whether this forward feeds the whole canvas again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.cache import PositionCache
from dare_bench.dare.families.registry import UnknownName


@dataclass(slots=True)
class Place:
    """Where a row stands. Plain numbers: what a row feeds is known without a look at the device.

    Attributes:
        prompt, canvas: lengths.
        seed: of its draws.
        start, end: the current block.
        view: first position that may change.
        block: index of the block, 0-based.
        steps: nominal steps of the block.
        masks: masked positions at its start.
        stored: positions already final in the cache (block cache).
        nfe, fed, read: forwards so far, positions fed, query x key pairs.
        extra: forwards that commit nothing, still to come (`compat`).
        fresh: the next forward is the first of the block.
        built: the cache has been filled once.
        kinds: of its forwards, by code.
        steady: what it feeds until the block is done, once that is known (`plan.Span`).
    """

    prompt: int
    canvas: int
    seed: int
    start: int = 0
    end: int = 0
    view: int = 0
    block: int = -1
    steps: int = 0
    masks: int = 0
    stored: int = 0
    nfe: int = 0
    fed: int = 0
    read: int = 0
    extra: int = 0
    fresh: bool = True
    built: bool = False
    kinds: list[int] = field(default_factory=list)
    steady: Any = None


class Window(NamedTuple):
    """What a row feeds: positions [low, high), keys [0, keys); `full` marks forwards that feed the whole canvas."""

    low: int
    high: int
    keys: int
    full: bool


@dataclass(frozen=True)
class CachePolicy:
    """A rule for what to feed.

    Attributes:
        name: as in `DecoderConfig.cache`.
        keeps: whether keys and values are kept between forwards.
        window: rule; gets a row's place and the policy's options.
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
    return Window(0, place.canvas, place.canvas, True)


def _up_to_block(place: Place, lead: int) -> Window:
    return Window(0, place.end, place.end, True)


def _block(place: Place, lead: int) -> Window:
    return Window(place.stored if place.fresh else place.start, place.end, place.end, False)


def _refreshed(place: Place, full: bool, low: int, high: int) -> Window:
    canvas = place.canvas
    return Window(0, canvas, canvas, True) if full else Window(max(low, 0), min(high, canvas), canvas, False)


def _prefix(place: Place, lead: int) -> Window:
    return _refreshed(place, place.fresh, place.start - lead, place.canvas)


def _dual(place: Place, lead: int) -> Window:
    return _refreshed(place, place.fresh, place.start - lead, place.end)


def _vicinity(place: Place, lead: int, *, prefix_look: int, after_look: int, warmup_steps: int) -> Window:
    full = place.nfe < warmup_steps or not place.built or (place.fresh and place.block > 0)
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
