"""The check that every engine makes of what it is asked."""

from __future__ import annotations

from collections.abc import Sequence

from dare_bench.dare.decoding import compat
from dare_bench.dare.decoding.config import DecoderConfig


def check(prompts: Sequence[Sequence[int]], decoder: DecoderConfig, seeds: Sequence[int]) -> int:
    """Refuse settings and prompts that no engine can answer.

    Args:
        prompts: token ids.
        decoder: settings.
        seeds: one per prompt.

    Returns:
        Tokens to generate.

    Raises:
        ValueError: for an empty prompt, a missing gen_length, or settings outside their range.
    """
    if decoder.gen_length is None or decoder.gen_length < 1:
        raise ValueError(f"decoder.gen_length is {decoder.gen_length!r}; allowed: a positive number of tokens")
    for field in ("block_length", "steps_per_block"):
        value = getattr(decoder, field)
        if value is not None and value < 1:
            raise ValueError(f"decoder.{field} is {value!r}; allowed: a positive number, or None for the default")
    compat.complete(decoder.compat)
    if not decoder.temperature >= 0:
        raise ValueError(f"decoder.temperature is {decoder.temperature!r}; allowed: 0 (greedy) or a positive number")
    if len(seeds) != len(prompts):
        raise ValueError(f"{len(seeds)} seeds for {len(prompts)} prompts; give one per prompt")
    empty = [index for index, prompt in enumerate(prompts) if not len(prompt)]
    if empty:
        raise ValueError(f"prompt {empty[0]} is empty; a prompt needs at least one token")
    return decoder.gen_length
