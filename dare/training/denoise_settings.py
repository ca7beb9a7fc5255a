"""Which decoder settings the denoiser of step-wise and branching rollouts honours. Imports no torch."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dare_bench.dare.decoding.config import DecoderConfig

#: Selectors that commit as many as the scheduler asks for: a state is then known by the number of its step.
SELECTORS = ("entropy", "low_confidence", "maskgit_plus", "random", "sequential", "topk_margin")
#: Those whose measure of a token stays comparable from step to step.
MEASURED = ("entropy", "low_confidence", "topk_margin")
SCHEDULERS = ("cosine", "linear", "quota")
#: Fields that count; others must have their default, or one of the values listed.
HONOURED = (
    "name", "selector", "selector_options", "scheduler", "scheduler_options", "steps_per_block", "gen_length",
    "block_length", "temperature",
)  # fmt: skip
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "selector": SELECTORS,
    "scheduler": SCHEDULERS,
    "cache": ("auto", "none"),
    "early_stop": (True, "block", False),
}


def problems(decoder: DecoderConfig, *, remask: bool = False) -> dict[str, tuple[Any, ...]]:
    """Fields that are not honoured, with the values that are.

    Args:
        decoder: of the rollout.
        remask: committed tokens may be masked again: confidences of several steps are compared.
    """
    default = DecoderConfig()
    allowed = {**_ALLOWED, **({"selector": MEASURED} if remask else {})}
    found = {}
    for field in fields(decoder):
        if field.name in HONOURED and field.name not in allowed:
            continue
        fits = allowed.get(field.name, (getattr(default, field.name),))
        if getattr(decoder, field.name) not in fits:
            found[field.name] = fits
    return found
