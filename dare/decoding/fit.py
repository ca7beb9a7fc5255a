"""Which settings of a decoder make sense together, and for a family: one table for manifests and engine.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.families.facts import BLOCK_CAUSAL, FULL

#: Attention that a cache is sound for; the others fit any.
CACHE_ATTENTION = {"block": BLOCK_CAUSAL, "prefix": FULL, "dual": FULL, "vicinity": FULL}
_REFRESHED = ("prefix", "dual", "vicinity")
_NAMES = {FULL: "full", BLOCK_CAUSAL: "block-causal", "causal": "causal"}


@dataclass(frozen=True)
class Problem:
    """Something that does not fit.

    Attributes:
        field: of `DecoderConfig`.
        said: what is wrong, in words.
        allowed: what fits.
    """

    field: str
    said: str
    allowed: str


def problems(config: DecoderConfig, attention: str, shift: int) -> list[Problem]:
    """Everything that does not fit, the most basic first.

    Args:
        config: complete settings.
        attention: of the family: ``full``, ``block_causal`` or ``causal``.
        shift: of the family, see `facts.Family`.
    """
    return [*_attention(config, attention), *_quirks(config, attention, shift)]


def _attention(config: DecoderConfig, attention: str) -> Iterator[Problem]:
    needed = CACHE_ATTENTION.get(config.cache, attention)
    if needed != attention:
        said = f"cache {config.cache} needs {_NAMES[needed]} attention, not {_NAMES[attention]}"
        yield Problem("cache", said, "auto")
    if config.editor != "none" and attention != BLOCK_CAUSAL:
        said = f"editor {config.editor} needs block-causal attention, not {_NAMES[attention]}"
        yield Problem("editor", said, "none")
    if config.scheduler == "ass" and attention != FULL:
        said = f"scheduler ass has blocks of its own and needs full attention, not {_NAMES[attention]}"
        yield Problem("scheduler", said, "quota")


def _quirks(config: DecoderConfig, attention: str, shift: int) -> Iterator[Problem]:
    """Published behaviour belongs to what it was published for; elsewhere it would do nothing, or harm."""
    refreshed = config.cache in _REFRESHED
    windows = config.cache in ("prefix", "dual")
    keeps_blocks = attention == BLOCK_CAUSAL and config.cache in ("auto", "block")
    needs = {
        "factor_last": (config.selector == "factor", "selector factor"),
        "mask_predicted": (attention == FULL and not refreshed, "full attention and no cache"),
        "extra_forward": (refreshed, f"a cache that is refreshed: {', '.join(_REFRESHED)}"),
        "separate_store": (keeps_blocks, "block-causal attention and the cache block"),
        "overwrite": (attention == BLOCK_CAUSAL, "block-causal attention"),
        "dream_window": (windows and shift > 0, "a family of shifted logits (dream) and the cache prefix or dual"),
        "dream_block_timesteps": (config.scheduler == "timesteps", "scheduler timesteps"),
    }
    for name in config.compat:
        fits, wanted = needs.get(name, (True, ""))
        if not fits:
            yield Problem("compat", f"compat {name} needs {wanted}", "leave it out")
