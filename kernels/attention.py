"""Attention with grouped key-value heads: a reference, SDPA and flash-attn, one result.

Models run inside transformers classes; those take the same path by name: load them with
``attn_implementation=choose(...).attn_implementation`` (see `dispatch.py`), which is ``sdpa`` on CPU and wherever a
boolean mask is needed. The functions here are what that choice is tested against, and what code outside a transformers
class calls.
"""

from __future__ import annotations

import importlib

import torch
import torch.nn.functional as F
from dare_bench.kernels.dispatch import choose
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, path: str | None = None) -> Tensor:
    """Scaled dot-product attention by the best path for the device, dtype and mask.

    Args:
        q: [B, H, Q, D] floating point.
        k: [B, H_kv, K, D], same dtype; H is a multiple of H_kv, each key head serves H / H_kv consecutive query heads.
        v: [B, H_kv, K, D].
        mask: bool, broadcastable to [B, H, Q, K], True = may attend; None = all keys open.
        path: force ``"flash"``, ``"sdpa"`` or ``"reference"``.

    Returns:
        [B, H, Q, D] in the dtype of q. A query that may attend to nothing gets zeros: NaN there would reach real rows
        of the next layer through its values (0 x NaN).

    Raises:
        ValueError: on wrong shapes, a mask that is not bool, or a forced path that cannot run.
    """
    _check(q, k, v, mask)
    kind = "none" if mask is None else "arbitrary"
    chosen = choose(q.device, q.dtype, mask=kind, head_dim=q.shape[-1], prefer=path).path
    if chosen == "flash":
        return flash_attention(q, k, v)
    if chosen == "sdpa":
        return sdpa_attention(q, k, v, mask)
    return reference_attention(q, k, v, mask)


def reference_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention as it is written in books: explicit scores and softmax in at least float32.

    Args:
        q: [B, H, Q, D].
        k: [B, H_kv, K, D].
        v: [B, H_kv, K, D].
        mask: bool, broadcastable to [B, H, Q, K]; None = all open.

    Returns:
        [B, H, Q, D] in the dtype of q; zeros for a query without an open key.
    """
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups = q.shape[1] // k.shape[1]
    keys = k.to(dtype).repeat_interleave(groups, dim=1)
    values = v.to(dtype).repeat_interleave(groups, dim=1)
    scores = q.to(dtype) @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5
    if mask is None:
        return (scores.softmax(dim=-1) @ values).to(q.dtype)
    # The most negative finite number instead of -inf: an empty row stays finite, and is zeroed below.
    probs = scores.masked_fill(~mask, torch.finfo(dtype).min).softmax(dim=-1).masked_fill(~mask, 0.0)
    return (probs @ values).to(q.dtype)


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention by torch's fused kernel.

    Args:
        q: [B, H, Q, D].
        k: [B, H_kv, K, D].
        v: [B, H_kv, K, D].
        mask: bool, broadcastable to [B, H, Q, K]; None = all open.

    Returns:
        [B, H, Q, D]; zeros for a query without an open key.
    """
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    if mask is None:
        return out
    # Kernels differ on empty rows (zeros, NaN, the mean of all values); this makes them one.
    return out.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)


def flash_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by the flash-attn package: CUDA, half precision, no mask.

    Args:
        q: [B, H, Q, D] bfloat16 or float16.
        k: [B, H_kv, K, D].
        v: [B, H_kv, K, D].

    Returns:
        [B, H, Q, D].

    Raises:
        ImportError: if flash-attn is not installed.
    """
    flash_attn_func = importlib.import_module("flash_attn").flash_attn_func
    # flash-attn keeps the length before the heads.
    out = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=False)
    return out.transpose(1, 2)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            "q must be [B, H, Q, D], k and v [B, H_kv, K, D] with the same B and D, got "
            f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"query heads ({q.shape[1]}) must be a multiple of key-value heads ({k.shape[1]})")
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool with True = may attend, got {mask.dtype}; use mask != 0 for a 0/1 mask")
