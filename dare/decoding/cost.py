"""Counting what decoding costs: one place, one definition."""

from __future__ import annotations

from typing import Any

from dare_bench.dare.families.dims import Dims


def forward_flops(dims: Dims, queries: Any, keys: Any, outputs: Any) -> Any:
    """Floating point operations of one row's forward, 2 per multiply-add.

    Args:
        dims: network sizes.
        queries: query positions fed.
        keys: key positions attended per query (the block's end under block-causal attention, the canvas under full
            attention, the mean under causal attention).
        outputs: positions for which the output head is computed.
        All three are numbers, or float64 tensors of like shape.

    Returns:
        2 P_lin q + 4 L h q k + 2 d V o.
    """
    return total_flops(dims, queries, queries * keys, outputs)


def total_flops(dims: Dims, queries: Any, pairs: Any, outputs: Any) -> Any:
    """Floating point operations of any number of forwards, from what they fed in total.

    Args:
        dims: network sizes.
        queries: query positions fed.
        pairs: query x key pairs attended.
        outputs: positions for which the output head is computed.
    """
    linear = 2.0 * dims.linear * queries
    attention = 4.0 * dims.layers * dims.heads * dims.head_dim * pairs
    return linear + attention + 2.0 * dims.hidden * dims.vocab * outputs


def tokens_per_forward(tokens_text: int, nfe: int) -> float:
    """TPF: committed tokens before the first stop token per network call (a ratio of totals)."""
    return tokens_text / nfe if nfe else 0.0
