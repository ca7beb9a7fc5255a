"""Rebuild the denoising trajectory of a generation: what each forward saw, what it committed, steps merged for training.

Generations hold whole blocks, also behind a stop token, so that the inputs of the last forwards can be rebuilt. Imports no
torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from dare_bench.dare.decoding.generation import FILLED

Edits = Sequence[Sequence[int]]


def state_at(
    token_ids: Sequence[int], step_map: Sequence[int], step: int, mask_token_id: int, edits: Edits = ()
) -> list[int]:
    """The tokens as the forward number `step` saw them: what was committed before it, the mask id elsewhere.

    Args:
        token_ids: final tokens.
        step_map: forward that committed each of them (0-based, -1 = never, -2 = filled behind an end token).
        step: forward index.
        mask_token_id: mask id.
        edits: rewrites (forward, index, old, new), as in `Generation.edits`.

    Returns:
        One token per position. Filled positions are masks until the forward that committed the end token before them, as
        far as a step map tells: what they held before they were filled is not recorded.
    """
    ended = _end(step_map)
    first: dict[int, int] = {}
    latest: dict[int, int] = {}
    for when, place, old, new in sorted(map(tuple, edits)):
        first.setdefault(place, old)
        if when < step:
            latest[place] = new
    found = []
    for place, (token, when) in enumerate(zip(token_ids, step_map, strict=True)):
        committed = ended if when == FILLED else when
        seen = latest.get(place, first.get(place, token))
        found.append(seen if 0 <= committed < step else mask_token_id)
    return found


def _end(step_map: Sequence[int]) -> int:
    """The forward that committed the last token before the filled ones: their end token."""
    place = next((place for place, when in enumerate(step_map) if when == FILLED), 0)
    return step_map[place - 1] if place else -1


def states(
    token_ids: Sequence[int], step_map: Sequence[int], mask_token_id: int, edits: Edits = ()
) -> Iterator[list[int]]:
    """Inputs of all forwards, then the final tokens: x_0 ... x_K.

    Args:
        token_ids, step_map, mask_token_id, edits: as in `state_at`.
    """
    last = max([*step_map, *(edit[0] for edit in edits)], default=-1)
    for step in range(max(last, -1) + 2):
        yield state_at(token_ids, step_map, step, mask_token_id, edits)


def committed_at(step_map: Sequence[int], step: int) -> list[int]:
    """Positions that a forward committed: the targets of its training step.

    Args:
        step_map: as in `state_at`.
        step: forward index.
    """
    return [place for place, when in enumerate(step_map) if when == step]


def merge_steps(step_map: Sequence[int], size: int | None, block_starts: Sequence[int] = (0,)) -> list[int]:
    """Merge neighbouring steps of each block, to train on fewer inputs.

    Args:
        step_map: as in `state_at`, without edits: a merged step shows a position as masked until all of it is committed.
        size: steps that become one; null = all steps of a block.
        block_starts: index of each block's first position, as in `Generation.block_starts`.

    Returns:
        A step map of the merged steps, numbered densely from 0: steps that committed nothing are gone, and no step spans
        two blocks. Positions that were never committed, or filled, stay as they are.

    Raises:
        ValueError: for a size below 1.

    Source:
        yjyddq/DARE ``step_merge`` (all steps of a block), TraceRL (arXiv 2509.06949) shrinkage (`size` neighbours).
    """
    if size is not None and size < 1:
        raise ValueError(f"merge_steps: size is {size}; allowed: a positive number of steps, or None for whole blocks")
    bounds = [*sorted({0, *block_starts}), len(step_map)]
    found, used = list(step_map), 0
    for begin, end in itertools.pairwise(bounds):
        steps = sorted({when for when in step_map[begin:end] if when >= 0})
        group = {when: index // (size or max(len(steps), 1)) for index, when in enumerate(steps)}
        for place in range(begin, end):
            if step_map[place] >= 0:
                found[place] = used + group[step_map[place]]
        used += max(group.values(), default=-1) + 1
    return found
