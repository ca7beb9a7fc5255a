"""Decode with the engine of a model's family."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.generation import Generation
from dare_bench.dare.families.base import DiffusionLM


def generate(
    lm: DiffusionLM, prompts: Sequence[Sequence[int]], decoder: DecoderConfig, seeds: Sequence[int], **options: Any
) -> list[Generation]:
    """Decode prompts; arguments and result as in `engine.generate`, for every family.

    Args:
        lm: model in evaluation mode.
        prompts: token ids.
        decoder: settings; an engine refuses or leaves out what it does not honour (`Family.decoder_fields`), manifests that
            give such a field are refused before.
        seeds: one per prompt.
        options: ``batch_size``, ``on_finish``.
    """
    engine = importlib.import_module(f"dare_bench.dare.decoding.{lm.family.engine}")
    return engine.generate(lm, prompts, decoder, seeds, **options)
