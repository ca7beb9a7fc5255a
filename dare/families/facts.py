"""What a family is, as facts: class name, config fields, key names, mask rule, special tokens. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


class UnsupportedConfig(ValueError):
    """A checkpoint's config.json asks for something that the family's mapping does not reproduce."""


@dataclass(frozen=True)
class Family:
    """One model family.

    Attributes:
        name: registry name.
        transformers_class: the unmodified class that computes it.
        block_causal: attention is block-causal (an exact K/V cache of finished blocks exists); else full.
        matches: whether a config.json (as a dict) is of this family.
        to_transformers: official config fields -> keyword arguments of the transformers config class.
        config_class: transformers config class name.
        rename: official parameter name -> name in the transformers class (None: not a parameter of ours).
        unrename: the inverse, for saving with official names.
        mask_token_id: default when the config does not carry it.
        eos_token_id: default end-of-text id, also used as padding.
        stop_tokens: token strings at which a reply ends, looked up in the checkpoint's tokenizer.
        reply_end: token string that closes a reply in supervised targets.
        default_block_length: default when the config does not carry it (decoding block of full-attention families).
        lora_targets: full-match pattern on *our* module names.
        dims: official config -> (layers, hidden, heads, kv_heads, head_dim, mlp, vocab).
        chat_template: jinja template used when the checkpoint's tokenizer has none.
        system_block: whether a system message is rendered.
    """

    name: str
    transformers_class: str
    config_class: str
    block_causal: bool
    matches: Callable[[Mapping[str, Any]], bool]
    to_transformers: Callable[[Mapping[str, Any]], dict[str, Any]]
    rename: Callable[[str], str]
    unrename: Callable[[str], str]
    mask_token_id: int
    eos_token_id: int
    stop_tokens: tuple[str, ...]
    reply_end: str
    default_block_length: int
    lora_targets: str
    dims: Callable[[Mapping[str, Any]], Dims]
    chat_template: str

    def parameters(self, config: Mapping[str, Any]) -> int:
        """Exact parameter count of a config."""
        return self.dims(config).parameters

    def kv_bytes_per_token(self, config: Mapping[str, Any], dtype_bytes: int = 2) -> int:
        """Bytes of cached keys and values per token."""
        dims = self.dims(config)
        return 2 * dims.layers * dims.kv_heads * dims.head_dim * dtype_bytes

    def block_length(self, config: Mapping[str, Any]) -> int:
        """Block length the checkpoint was trained for (block families) or decodes with by default."""
        return int(config.get("block_size") or self.default_block_length)


@dataclass(frozen=True)
class Dims:
    """Sizes of a dense decoder, as needed for parameter, memory and FLOP counts."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    qk_norm: bool = False

    @property
    def linear_per_layer(self) -> int:
        """Weights of the linear maps of one layer."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.mlp

    @property
    def parameters(self) -> int:
        """All weights, embedding and untied head included."""
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return self.layers * (self.linear_per_layer + norms) + self.hidden + 2 * self.vocab * self.hidden

    def lora_parameters(self, r: int) -> int:
        """Adapter weights of rank `r` on the seven linear maps of every layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        widths = (self.hidden + q) * 2 + (self.hidden + kv) * 2 + (self.hidden + self.mlp) * 3
        return self.layers * r * widths


def require(config: Mapping[str, Any], family: str, allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse a config whose switches differ from what the mapping reproduces.

    Args:
        config: official config.json.
        family: name used in the message.
        allowed: field -> accepted values; a missing field is accepted.

    Raises:
        UnsupportedConfig: naming the field, its value and the accepted ones.
    """
    for field, values in allowed.items():
        if field in config and config[field] not in values:
            accepted = " or ".join(repr(value) for value in values)
            raise UnsupportedConfig(
                f"{family}: config field {field!r} is {config[field]!r}, supported: {accepted}. "
                "The checkpoint would be computed wrongly; load it with the code it came with instead."
            )


def substitute(pairs: tuple[tuple[str, str], ...]) -> Callable[[str], str]:
    """Build a renaming function from (pattern, replacement) pairs; the first full match wins, else the name is kept."""
    compiled = [(re.compile(pattern), replacement) for pattern, replacement in pairs]

    def rename(name: str) -> str:
        for pattern, replacement in compiled:
            if pattern.fullmatch(name):
                return pattern.sub(replacement, name)
        return name

    return rename
