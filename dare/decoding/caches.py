"""What a forward recomputes: cache policies of the decoding engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.cache import PositionCache
from dare_bench.dare.families.registry import UnknownName
from torch import Tensor


@dataclass(frozen=True)
class CachePolicy:
    """What a forward feeds.

    Attributes:
        name: as in `DecoderConfig.cache`.
        keeps: whether finished blocks are kept as keys and values.
    """

    name: str
    keeps: bool

    def window(
        self, lm: DiffusionLM, stored: Tensor, start: Tensor, end: Tensor, canvas: Tensor
    ) -> tuple[Tensor, Tensor]:
        """First and last+1 position each row feeds.

        Args:
            lm: decides whether later positions are seen at all.
            stored: int64 [A], positions already final in the cache.
            start, end: int64 [A], the current block.
            canvas: int64 [A], length of the row's canvas.
        """
        if self.keeps:
            return stored, end
        return torch.zeros_like(start), end if lm.is_block_causal else canvas


_POLICIES: dict[str, Callable[[], CachePolicy]] = {
    "none": lambda: CachePolicy("none", keeps=False),
    "block": lambda: CachePolicy("block", keeps=True),
}


def policy(name: str, lm: DiffusionLM) -> CachePolicy:
    """The policy of a name for a model.

    Raises:
        UnknownName: for an unknown name.
        ValueError: for a block cache on a model with full attention.
    """
    if name == "auto":
        name = "block" if lm.is_block_causal else "none"
    if name not in _POLICIES:
        raise UnknownName("cache", name, ["auto", *_POLICIES])
    if name == "block" and not lm.is_block_causal:
        raise ValueError(
            f"cache 'block' needs block-causal attention, family {lm.family.name!r} has full attention; use 'none'"
        )
    return _POLICIES[name]()


__all__ = ["CachePolicy", "PositionCache", "policy"]
