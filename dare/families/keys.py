"""Official tensor names and where each lives in our network. Imports no torch.

One function per family enumerates every official name; loading, the check for missing and left-over keys, and saving
all read the same list, so that a round trip cannot disagree with itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dare_bench.dare.families.dims import Dims


@dataclass(frozen=True)
class Piece:
    """A part of one of our tensors.

    Attributes:
        ours: name in our network.
        index: what of it, as in ``tensor[index]``; empty = all.
    """

    ours: str
    index: tuple[Any, ...] = ()


#: An official tensor is the concatenation of its pieces along the first axis.
Tensors = Iterator[tuple[str, tuple[Piece, ...]]]


def decoder_tensors(dims: Dims) -> Tensors:
    """Names of a decoder in the layout of the transformers library, experts as separate tensors.

    Args:
        dims: sizes; they say which biases, norms and experts exist.

    Returns:
        (official name, pieces). transformers keeps the experts of a layer in two tensors ``[E, 2I, H]`` (gate rows, then
        up rows) and ``[E, H, I]``; released checkpoints have three matrices per expert.
    """
    yield _same("model.embed_tokens.weight")
    for layer in range(dims.layers):
        at = f"model.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj"):
            yield _same(f"{at}.self_attn.{part}.weight")
            if dims.qkv_bias:
                yield _same(f"{at}.self_attn.{part}.bias")
        yield _same(f"{at}.self_attn.o_proj.weight")
        if dims.qk_norm:
            yield _same(f"{at}.self_attn.q_norm.weight")
            yield _same(f"{at}.self_attn.k_norm.weight")
        yield from _mlp(dims, layer, f"{at}.mlp")
        yield _same(f"{at}.input_layernorm.weight")
        yield _same(f"{at}.post_attention_layernorm.weight")
    yield _same("model.norm.weight")
    if not dims.tied:
        yield _same("lm_head.weight")


def _same(name: str) -> tuple[str, tuple[Piece, ...]]:
    return name, (Piece(name),)


def _mlp(dims: Dims, layer: int, at: str) -> Tensors:
    experts = dims.experts
    if experts is None or layer in experts.dense_layers:
        for part in ("gate_proj", "up_proj", "down_proj"):
            yield _same(f"{at}.{part}.weight")
        return
    yield _same(f"{at}.gate.weight")
    for expert in range(experts.count):
        here, fused = f"{at}.experts.{expert}", f"{at}.experts.gate_up_proj"
        yield f"{here}.gate_proj.weight", (Piece(fused, (expert, slice(0, experts.width))),)
        yield f"{here}.up_proj.weight", (Piece(fused, (expert, slice(experts.width, None))),)
        yield f"{here}.down_proj.weight", (Piece(f"{at}.experts.down_proj", (expert,)),)
    if experts.shared:
        for part in ("gate_proj", "up_proj", "down_proj"):
            yield _same(f"{at}.shared_experts.{part}.weight")


def renamed(tensors: Tensors, rename: Callable[[str], str]) -> Tensors:
    """The same places under other official names."""
    return ((rename(name), pieces) for name, pieces in tensors)


def substitute(pairs: tuple[tuple[str, str], ...]) -> Callable[[str], str]:
    """Build a renaming function from (pattern, replacement) pairs; the first full match wins, else the name is kept."""
    compiled = [(re.compile(pattern), replacement) for pattern, replacement in pairs]

    def rename(name: str) -> str:
        for pattern, replacement in compiled:
            if pattern.fullmatch(name):
                return pattern.sub(replacement, name)
        return name

    return rename
