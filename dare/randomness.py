"""Random draws that belong to one (seed, stream, sample) and to nothing else.

Two tools. `stream_seed` hashes names to a 63-bit seed. `uniform` turns seeds into uniforms by a counter-based hash
(splitmix64 finaliser), one independent stream per row: the value depends on (row seed, position in the row) only, hence
not on batch size, batch order, device or worker count, and no generator state has to be stored to resume.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def stream_seed(*parts: int | str) -> int:
    """Hash names and numbers to a seed in [0, 2**63).

    Args:
        parts: for example ``(run_seed, "mask", step, sample_id)``.

    Returns:
        A stable seed, equal on every machine and Python version.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    # int64 has no unsigned shift in torch: clear the copied sign bits after the arithmetic one.
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def uniform(seeds: Sequence[int] | torch.Tensor, *shape: int, device: torch.device | str | None = None) -> torch.Tensor:
    """Draw uniforms in (0, 1), one independent stream per row.

    Args:
        seeds: [B] integers, one per row.
        shape: shape of the draws of one row.
        device: where the result lives (default: that of `seeds`, else CPU).

    Returns:
        float64 [B, *shape], strictly inside (0, 1) with 53-bit resolution.

    Source:
        Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), the mixing function.
    """
    rows = torch.as_tensor(seeds, dtype=torch.int64, device=device)
    count = 1
    for size in shape:
        count *= size
    counter = torch.arange(1, count + 1, dtype=torch.int64, device=rows.device)
    z = rows.view(-1, 1) * _MIX_1 + counter.view(1, -1) * _GOLDEN
    z = (z ^ _shift_right(z, 30)) * _MIX_1
    z = (z ^ _shift_right(z, 27)) * _MIX_2
    z = z ^ _shift_right(z, 31)
    u = (_shift_right(z, 11).to(torch.float64) + 0.5) * 2.0**-53
    return u.view(rows.numel(), *shape)
