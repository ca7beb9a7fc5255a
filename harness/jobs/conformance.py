"""Compare this installation with recorded values of the released code."""

from __future__ import annotations

from pathlib import Path

from dare_bench.dare.conformance import algorithm_runner
from dare_bench.dare.conformance import decoding as samplers
from dare_bench.dare.conformance import families as family_rules
from dare_bench.dare.conformance.decoding_outcome import Replay
from dare_bench.dare.conformance.outcome import Outcome
from dare_bench.harness.jobs import conformance_rewards


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


def decoding(folder: Path, *, device: str) -> list[Replay]:
    """Published samplers: every case of a folder.

    Args:
        folder: of `decoding_cases.read_cases`.
        device: torch device.

    Raises:
        BadReference, BadCheckpoint, UnknownName, UnsupportedConfig: as `dare.conformance.decoding.compare`.
    """
    return samplers.compare(folder, device=device)


def algorithms(folder: Path) -> list[Outcome]:
    """Training algorithms: every file of recorded values.

    Args:
        folder: of `layout.fixture_files`.

    Raises:
        BadReference: as `dare.conformance.algorithm_runner.compare`.
    """
    return algorithm_runner.compare(folder, {"rewards": conformance_rewards})
