"""Compare this installation with recorded values of the released code."""

from __future__ import annotations

from pathlib import Path

from dare_bench.dare.conformance import families as family_rules
from dare_bench.dare.conformance.outcome import Outcome


def families(folders: list[Path], *, tolerance: float, dtype: str, device: str) -> list[Outcome]:
    """Model families: every recorded tensor of every folder.

    Args:
        folders: of `layout.model_folders`.
        tolerance: largest absolute difference that passes.
        dtype: of the weights.
        device: torch device.

    Raises:
        BadReference, BadCheckpoint, UnknownName, UnsupportedConfig: as `dare.conformance.families.compare`.
    """
    found: list[Outcome] = []
    for folder in folders:
        found += family_rules.compare(folder, tolerance=tolerance, dtype=dtype, device=device)
    return found
