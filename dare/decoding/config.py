"""What a decoder is, as data. Imports no torch: manifests are validated with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class DecoderConfig:
    """Settings of the decoding engine: scheduler (how many) x selector (which) x cache x editor x limits.

    Attributes:
        name: label in tables and cell names; not part of the fingerprint.
        selector: which masked positions are committed (`dare-bench list decoders`).
        selector_options: options of the selector, for example ``{"threshold": 0.9}``.
        scheduler: how many positions a step commits at least (``quota``: spread evenly over the steps of a block).
        steps_per_block: denoising steps of one block; null = block length, one token per step.
        gen_length: tokens to generate; null = what the benchmark's protocol says.
        block_length: null = the checkpoint's own (block families are trained for one).
        cache: ``auto`` = exact block cache where the family has one, else ``none``; ``none`` recomputes everything.
            ``prefix``, ``dual`` and ``vicinity`` are approximate, for full attention.
        temperature: 0 = greedy; else Gumbel-max sampling in float64.
        early_stop: true or ``block``: stop a row after the block that holds its first stop token, the text is the same
            either way; ``now``: as soon as a stop token has no mask before it; ``fill``: after every step everything
            behind the first end token becomes end tokens; false: decode the whole canvas.
        scheduler_options, cache_options: options of the two.
        editor: ``token_editing`` rewrites committed tokens of the current block (LLaDA2.1).
        editor_options: its options.
        weighting: what changes confidences before the selection: ``eoser``, ``credit``.
        weighting_options: its options.
        cfg_scale: classifier-free guidance, 0 = off; each forward then feeds a second row with the prompt masked.
        top_p, top_k: sampling filters; null = off.
        confidence: ``plain`` = probability at temperature 1 before any filter; ``filtered`` = after temperature and
            filters (Dream, SDAR's published sampler).
        eos_rule: ``never`` = end tokens cannot be chosen; ``last`` = they are chosen with confidence 0.
        compat: published behaviour that is not the rule, name -> options; see docs.
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
    early_stop: bool | str = True
    scheduler_options: Mapping[str, Any] = field(default_factory=dict)
    cache_options: Mapping[str, Any] = field(default_factory=dict)
    editor: str = "none"
    editor_options: Mapping[str, Any] = field(default_factory=dict)
    weighting: str = "none"
    weighting_options: Mapping[str, Any] = field(default_factory=dict)
    cfg_scale: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    confidence: str = "plain"
    eos_rule: str = "plain"
    compat: Mapping[str, Any] = field(default_factory=dict)

    @property
    def draws(self) -> bool:
        """Whether a result depends on the seed (sampled tokens or random positions)."""
        drawn = self.selector in ("random", "origin") or self.selector_options.get("alg_temp")
        return self.temperature > 0 or bool(drawn)

    def determinants(self) -> dict[str, Any]:
        """Everything that determines the output, for fingerprints (all fields but the label).

        Fields that came later are left out at their default: what was stored before they existed keeps its fingerprint.
        """
        values = {name: dict(value) if isinstance(value, Mapping) else value for name, value in asdict(self).items()}
        values.pop("name")
        default = asdict(_DEFAULT)
        return {name: value for name, value in values.items() if name in _FIRST or value != default[name]}


#: Fields of the first version.
_FIRST = (
    "selector", "selector_options", "scheduler", "steps_per_block", "gen_length", "block_length", "cache", "temperature",
    "early_stop",
)  # fmt: skip
_DEFAULT = DecoderConfig()
