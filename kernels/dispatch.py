"""Which implementation of a kernel runs, and why. `dare-bench doctor` prints `report()`."""

from __future__ import annotations

import functools
import importlib.util
import logging
from dataclasses import dataclass
from typing import Literal

import torch

logger = logging.getLogger(__name__)

MaskKind = Literal["none", "arbitrary"]
PATHS = ("flash", "sdpa", "reference")
_HALF = (torch.bfloat16, torch.float16)
_FLASH_HEAD_DIM = 256


@dataclass(frozen=True)
class Choice:
    """The path chosen for one operation.

    Attributes:
        operation: what is computed, for example ``"attention"``.
        path: ``"flash"``, ``"sdpa"`` or ``"reference"`` for attention; the name of the code path otherwise.
        reason: one sentence for a reader of the log.
    """

    operation: str
    path: str
    reason: str

    @property
    def attn_implementation(self) -> str:
        """The name under which a transformers class takes the same path (``attn_implementation=`` at loading)."""
        return {"flash": "flash_attention_2", "sdpa": "sdpa", "reference": "eager"}[self.path]


def choose(
    device: str | torch.device,
    dtype: torch.dtype,
    *,
    mask: MaskKind,
    head_dim: int | None = None,
    prefer: str | None = None,
    has_flash_attn: bool | None = None,
) -> Choice:
    """Choose the attention path for a device, a dtype and a kind of mask.

    flash-attn takes no boolean mask, so block-causal and padded batches go to SDPA, which takes one at a cost of
    4-15 % (measured on CPU). On CPU SDPA is the only fused path: FlexAttention has no backward there.

    Args:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or a torch.device.
        dtype: dtype of queries, keys and values.
        mask: ``"none"`` when every key is open to every query, ``"arbitrary"`` for a boolean tensor.
        head_dim: channels per head; None = not known yet.
        prefer: force one of ``PATHS``; an error if it cannot run here.
        has_flash_attn: whether flash-attn is importable; None = look.

    Returns:
        Choice with a reason.

    Raises:
        ValueError: for an unknown mask kind or path, or a forced path that cannot run.
    """
    if mask not in ("none", "arbitrary"):
        raise ValueError(f"mask kind {mask!r} is unknown; allowed: 'none', 'arbitrary'")
    obstacle = _flash_obstacle(torch.device(device).type, dtype, mask, head_dim, has_flash_attn)
    if prefer is not None:
        if prefer not in PATHS:
            raise ValueError(f"attention path {prefer!r} is unknown; allowed: {', '.join(PATHS)}")
        if prefer == "flash" and obstacle:
            raise ValueError(f"attention path 'flash' cannot run: {obstacle}; use 'sdpa' or leave the choice open")
        return _logged(Choice("attention", prefer, "asked for"))
    if obstacle is None:
        return _logged(Choice("attention", "flash", "CUDA, half precision, no mask, flash-attn importable"))
    return _logged(Choice("attention", "sdpa", obstacle))


def report(device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> list[Choice]:
    """List what would run on a device, for `dare-bench doctor`.

    Args:
        device: device the model would be on.
        dtype: dtype of the model.

    Returns:
        One Choice per operation, in a fixed order.
    """
    rows = []
    for mask, label in (("none", "attention, no padding"), ("arbitrary", "attention, padded or block-causal")):
        choice = choose(device, dtype, mask=mask)
        rows.append(Choice(label, choice.path, choice.reason))
    rows.append(Choice("token log-probs", "chunked", "plain torch on every device; never forms [N, V] logits"))
    rows.append(Choice("select and commit", "vectorised", "plain torch on every device; one sort per row"))
    return rows


def has_module(name: str) -> bool:
    """Whether a top-level module could be imported, without importing it.

    Args:
        name: for example ``"flash_attn"``.

    Returns:
        True if an import would find it.
    """
    return importlib.util.find_spec(name) is not None


def _flash_obstacle(
    device: str, dtype: torch.dtype, mask: str, head_dim: int | None, has_flash_attn: bool | None
) -> str | None:
    """Why flash-attn cannot run, or None; the reason that is hardest to change comes first."""
    if device != "cuda":
        return f"flash-attn needs CUDA, the device is {device}"
    if mask != "none":
        return "flash-attn takes no boolean mask"
    if dtype not in _HALF:
        return f"flash-attn needs bfloat16 or float16, the dtype is {str(dtype).removeprefix('torch.')}"
    if head_dim is not None and head_dim > _FLASH_HEAD_DIM:
        return f"flash-attn takes heads of at most {_FLASH_HEAD_DIM} channels, these have {head_dim}"
    if not (has_module("flash_attn") if has_flash_attn is None else has_flash_attn):
        return "flash-attn is not installed"
    return None


@functools.cache
def _logged(choice: Choice) -> Choice:
    """Log each distinct choice once per process."""
    logger.info("%s: %s (%s)", choice.operation, choice.path, choice.reason)
    return choice
