"""Rebuild the denoising trajectory from a step map. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def state_at(token_ids: Sequence[int], step_map: Sequence[int], step: int, mask_token_id: int) -> list[int]:
    """The tokens as the forward number `step` saw them: committed before it, the mask id elsewhere.

    Args:
        token_ids: final tokens.
        step_map: forward that committed each of them (0-based, -1 = never).
        step: forward index.
        mask_token_id: mask id.
    """
    return [
        token if 0 <= committed < step else mask_token_id for token, committed in zip(token_ids, step_map, strict=True)
    ]


def states(token_ids: Sequence[int], step_map: Sequence[int], mask_token_id: int) -> Iterator[list[int]]:
    """Inputs of all forwards, then the final tokens: x_0 ... x_K."""
    for step in range(max(step_map, default=-1) + 2):
        yield state_at(token_ids, step_map, step, mask_token_id)
