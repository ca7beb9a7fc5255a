"""What a decoder is, as data. Imports no torch: manifests are validated with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class DecoderConfig:
    """Settings of the decoding engine: scheduler (how many) x selector (which) x cache x limits.

    Attributes:
        name: label in tables and cell names; not part of the fingerprint.
        selector: which masked positions are committed (`dare-bench list decoders`).
        selector_options: options of the selector, for example ``{"threshold": 0.9}``.
        scheduler: how many positions a step commits at least (``quota``: spread evenly over the steps of a block).
        steps_per_block: denoising steps of one block; null = block length, one token per step.
        gen_length: tokens to generate; null = what the benchmark's protocol says.
        block_length: null = the checkpoint's own (block families are trained for one).
        cache: ``auto`` = exact block cache where the family has one, else ``none``; ``none`` recomputes everything.
        temperature: 0 = greedy; else Gumbel-max sampling in float64. Confidence is always taken at temperature 1.
        early_stop: stop a row after the block that holds its first stop token. The text is the same either way.
    """

    name: str = "default"
    selector: str = "low_confidence"
    selector_options: Mapping[str, Any] = field(default_factory=dict)
    scheduler: str = "quota"
    steps_per_block: int | None = None
    gen_length: int | None = None
    block_length: int | None = None
    cache: str = "auto"
    temperature: float = 0.0
    early_stop: bool = True

    @property
    def draws(self) -> bool:
        """Whether a result depends on the seed (sampled tokens or random positions)."""
        return self.temperature > 0 or self.selector == "random"

    def determinants(self) -> dict[str, Any]:
        """Everything that determines the output, for fingerprints (all fields but the label)."""
        values = asdict(self)
        values.pop("name")
        values["selector_options"] = dict(self.selector_options)
        return values
