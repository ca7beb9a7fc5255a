"""Published behaviour that is not the rule, by name: what `DecoderConfig.compat` may hold. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dare_bench.dare.decoding import options as option_specs
from dare_bench.dare.families.registry import UnknownName


@dataclass(frozen=True)
class Quirk:
    """One published behaviour: its options and, in one line, what it does."""

    summary: str
    options: Mapping[str, option_specs.Option] = field(default_factory=dict)


QUIRKS = {
    "factor_last": Quirk("The factor rule also commits the last candidate when it alone fails (Fast-dLLM)."),
    "mask_predicted": Quirk("The mask id may be predicted; such a position stays masked (LLaDA)."),
    "extra_forward": Quirk("A block that its refreshing forward finished gets one more forward (Fast-dLLM)."),
    "separate_store": Quirk("Prompt and finished blocks are stored in forwards of their own (SDAR)."),
    "unroll": Quirk(
        "Forwards run in groups without a look at the block (dInfer).",
        {"maximum": option_specs.count(default=4), "expected_tpf": option_specs.count(default=8)},
    ),
    "dream_window": Quirk("The refreshing forward commits the block's first position only (Fast-dLLM for Dream)."),
    "dream_block_timesteps": Quirk("A block ends after its nominal steps, finished or not (Fast-dLLM for Dream)."),
    "overwrite": Quirk("The count is not capped at the masks left, so that committed tokens are overwritten (SDAR)."),
    "torch_rng": Quirk("Draws come from torch's CPU generator in the published layout; one row at a time."),
}


def complete(given: Mapping[str, Any] | Sequence[str]) -> dict[str, dict[str, Any]]:
    """Published behaviours with all their options.

    Args:
        given: name -> options, or names.

    Raises:
        UnknownName: for an unknown name or option.
        ValueError: for a value that is not allowed.
    """
    wanted = given if isinstance(given, Mapping) else dict.fromkeys(given)
    found = {}
    for name, options in wanted.items():
        if name not in QUIRKS:
            raise UnknownName("compat", str(name), list(QUIRKS))
        if options is not None and not isinstance(options, Mapping):
            raise ValueError(f"compat {name!r} is {options!r}; allowed: a mapping of its options")
        found[name] = option_specs.complete("compat", name, QUIRKS[name].options, options or {})
    return found
