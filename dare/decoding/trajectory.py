"""Rebuild the denoising trajectory of a generation: what each forward saw, what it committed, which decoders allow it.

Generations hold whole blocks, also behind a stop token, so that the inputs of the last forwards can be rebuilt. Imports no
torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dare_bench.dare.decoding.config import DecoderConfig
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


def unreplayable(decoder: DecoderConfig) -> dict[str, str]:
    """Settings under which a step map alone does not replay an answer: tokens change again, or were never chosen.

    Args:
        decoder: of a rollout that an algorithm replays.

    Returns:
        Field -> what is allowed; empty = the decoder can be replayed.
    """
    found = {}
    if decoder.editor != "none":
        found["editor"] = "none (a committed token stays)"
    if decoder.early_stop == "fill":
        found["early_stop"] = "true, block, now, false (every token is chosen by the network)"
    if "overwrite" in decoder.compat:
        found["compat"] = "all but overwrite (a committed token stays)"
    return found


def check_replayable(decoder: DecoderConfig) -> None:
    """Refuse decoders that cannot be replayed.

    Args:
        decoder: as in `unreplayable`.

    Raises:
        ValueError: naming the field, its value and what is allowed.
    """
    for field, allowed in unreplayable(decoder).items():
        raise ValueError(f"{field}: {getattr(decoder, field)!r}; allowed where rollouts are replayed: {allowed}")
