"""How many positions a denoising step commits: pure functions, registered by name. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from dare_bench.dare.families.registry import UnknownName


def quota(masks: int, steps: int) -> list[int]:
    """Spread `masks` over `steps`, the first steps one more.

    Args:
        masks: masked positions of a block.
        steps: denoising steps of the block, at least 1.

    Returns:
        `steps` counts that sum to `masks`.

    Source: ML-GSAI/LLaDA `get_num_transfer_tokens`; JetAstra/SDAR.
    """
    base, rest = divmod(masks, steps)
    return [base + (index < rest) for index in range(steps)]


_SCHEDULERS: dict[str, Callable[[int, int], list[int]]] = {"quota": quota}


def schedulers() -> dict[str, Callable[[int, int], list[int]]]:
    """All schedulers by name."""
    return dict(_SCHEDULERS)


def resolve(name: str) -> Callable[[int, int], list[int]]:
    """One scheduler.

    Raises:
        UnknownName: with the nearest name.
    """
    if name not in _SCHEDULERS:
        raise UnknownName("scheduler", name, list(_SCHEDULERS))
    return _SCHEDULERS[name]
