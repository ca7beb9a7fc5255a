"""What a family is, as facts: network class, config fields, key names, mask rule, special tokens. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dare_bench.dare.families.dims import Dims
from dare_bench.dare.families.keys import Piece

FULL, BLOCK_CAUSAL, CAUSAL = "full", "block_causal", "causal"


class UnsupportedConfig(ValueError):
    """A checkpoint's config.json asks for something that the family's mapping does not reproduce."""


@dataclass(frozen=True)
class Network:
    """The unmodified transformers class that computes a config.

    Attributes:
        model_class: for example ``Qwen3MoeForCausalLM``.
        config_class: for example ``Qwen3MoeConfig``.
        arguments: of the config class.
    """

    model_class: str
    config_class: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Family:
    """One model family.

    Attributes:
        name: registry name.
        attention: ``full``, ``block_causal`` (finished blocks can be cached exactly) or ``causal``.
        matches: whether a config.json (as a dict) is of this family.
        network: official config -> transformers class; raises `UnsupportedConfig` for switches it does not reproduce.
        tensors: official config -> every official tensor name with its place in our network; null = the names are those
            of the network.
        dims: official config -> sizes.
        mask_token_id: default when the config does not carry it; null = the family has no mask token.
        eos_token_id: default end-of-text id, also used as padding.
        stop_tokens: token strings at which a reply ends, looked up in the checkpoint's tokenizer.
        reply_end: token string that closes a reply in supervised targets.
        reply_fill: token string behind the end of a reply, the padding token of tokenizers that have it.
        default_block_length: default when the config does not carry it (decoding block of full-attention families).
        lora_targets: full-match pattern on *our* module names.
        chat_template: jinja template used when the checkpoint's tokenizer has none.
        shift: logit i of the network scores token i + shift; aligned in `DiffusionLM`.
        engine: module of `dare.decoding` whose `generate` decodes it.
        trainer: module of `dare.training` whose `train` trains it; null = evaluation only.
        decoder_fields: fields of `DecoderConfig` that the engine honours; null = all.
        default_decoder: fields of `DecoderConfig` where a manifest leaves them out.
        chat_options: variables of the chat template.
    """

    name: str
    attention: str
    matches: Callable[[Mapping[str, Any]], bool]
    network: Callable[[Mapping[str, Any]], Network]
    tensors: Callable[[Mapping[str, Any]], Iterator[tuple[str, tuple[Piece, ...]]]] | None
    dims: Callable[[Mapping[str, Any]], Dims]
    mask_token_id: int | None
    eos_token_id: int
    stop_tokens: tuple[str, ...]
    reply_end: str
    default_block_length: int
    lora_targets: str
    chat_template: str
    shift: int = 0
    engine: str = "engine"
    trainer: str | None = "loop"
    decoder_fields: frozenset[str] | None = None
    default_decoder: Mapping[str, Any] = field(default_factory=dict)
    chat_options: Mapping[str, Any] = field(default_factory=dict)
    reply_fill: str | None = None

    @property
    def block_causal(self) -> bool:
        """Whether finished blocks never see later ones."""
        return self.attention == BLOCK_CAUSAL

    def parameters(self, config: Mapping[str, Any]) -> int:
        """Exact parameter count of a config."""
        return self.dims(config).parameters

    def kv_bytes_per_token(self, config: Mapping[str, Any], dtype_bytes: int = 2) -> int:
        """Bytes of cached keys and values per token."""
        return self.dims(config).kv_values_per_token * dtype_bytes

    def block_length(self, config: Mapping[str, Any]) -> int:
        """Block length the checkpoint was trained for (block families) or decodes with by default."""
        return whole(config, "block_size", whole(config, "canvas_length", self.default_block_length))


@dataclass(frozen=True)
class Overrides:
    """Facts of a family or config that a manifest sets for one checkpoint; null = as they are.

    Attributes:
        mask_token_id, eos_token_id, pad_token_id: special ids.
        block_length: tokens per block.
        stop_tokens: token strings that end a reply.
        reply_end: token string that closes a reply in supervised targets.
        lora_targets: full-match pattern on module names.
        chat_template: jinja text.
        chat_options: variables of the chat template, for example ``enable_thinking: false``.
        decoder: default decoder, fields of `DecoderConfig`.
    """

    mask_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    block_length: int | None = None
    stop_tokens: tuple[str, ...] | None = None
    reply_end: str | None = None
    lora_targets: str | None = None
    chat_template: str | None = None
    chat_options: Mapping[str, Any] | None = None
    decoder: Mapping[str, Any] | None = None

    def apply(self, family: Family, config: Mapping[str, Any]) -> tuple[Family, dict[str, Any]]:
        """Family and config with these facts; ids and block length go into the config and travel with saved weights."""
        named = {
            "stop_tokens": self.stop_tokens,
            "reply_end": self.reply_end,
            "lora_targets": self.lora_targets,
            "chat_template": self.chat_template,
            "chat_options": self.chat_options,
            "default_decoder": self.decoder,
        }
        ids = {
            "mask_token_id": self.mask_token_id,
            "eos_token_id": self.eos_token_id,
            "pad_token_id": self.pad_token_id,
            "block_size": self.block_length,
        }
        changed = replace(family, **{name: value for name, value in named.items() if value is not None})
        return changed, {**config, **{name: value for name, value in ids.items() if value is not None}}

    def values(self) -> dict[str, Any]:
        """What is set, as JSON values."""
        found = {name: value for name, value in vars(self).items() if value is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def require(config: Mapping[str, Any], family: str, allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse a config whose switches differ from what the mapping reproduces.

    Args:
        config: official config.json.
        family: name used in the message.
        allowed: field -> accepted values; a missing field is accepted.

    Raises:
        UnsupportedConfig: naming the field, its value and the accepted ones.
    """
    for name, values in allowed.items():
        if name in config and config[name] not in values:
            accepted = " or ".join(repr(value) for value in values)
            raise UnsupportedConfig(
                f"{family}: config field {name!r} is {config[name]!r}, supported: {accepted}. "
                "The checkpoint would be computed wrongly; load it with the code it came with instead."
            )


def only(config: Mapping[str, Any], family: str, known: frozenset[str]) -> None:
    """Refuse a config with fields nobody has looked at: one of them may change what the network computes.

    Args:
        config: official config.json.
        family: name used in the message.
        known: fields that the mapping uses, checks, or knows to be without effect.

    Raises:
        UnsupportedConfig: naming the fields whose value would do something if it did anything.
    """
    # A switch that is off, absent by another name, or zero is harmless whatever it means.
    strange = sorted(name for name in config if name not in known and config[name] not in (None, False, 0, "", [], {}))
    if strange:
        shown = ", ".join(f"{name} = {config[name]!r}" for name in strange[:5])
        more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
        raise UnsupportedConfig(
            f"{family}: config.json has switches that this mapping does not know: {shown}{more}. "
            "Remove them if they are without effect; otherwise the checkpoint would be computed wrongly."
        )


_REQUIRED = object()


def whole(config: Mapping[str, Any], name: str, default: Any = _REQUIRED, *, least: int = 1) -> int:
    """A size of a config.json.

    Args:
        config: official config.json.
        name: field.
        default: where the field is missing or null; none = it is needed.
        least: smallest sensible value.

    Raises:
        UnsupportedConfig: naming the field, its value and what is needed.
    """
    value = config.get(name)
    if value is None and default is not _REQUIRED:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        said = f"is {value!r}" if name in config else "is missing"
        raise UnsupportedConfig(
            f"{config.get('model_type', 'config')}: config field {name!r} {said}, needed: a whole number >= {least}"
        )
    return value


def number(config: Mapping[str, Any], name: str, default: float) -> float:
    """A setting of a config.json that is any number.

    Raises:
        UnsupportedConfig: for a text or anything else.
    """
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise UnsupportedConfig(
            f"{config.get('model_type', 'config')}: config field {name!r} is {value!r}, needed: a number"
        )
    return value


def indices(config: Mapping[str, Any], name: str) -> list[int]:
    """A list of whole numbers of a config.json; empty where it is missing or null.

    Raises:
        UnsupportedConfig: for anything else.
    """
    value = config.get(name) or []
    if not isinstance(value, list) or any(not isinstance(one, int) for one in value):
        raise UnsupportedConfig(
            f"{config.get('model_type', 'config')}: config field {name!r} is {value!r}, needed: a list of whole numbers"
        )
    return value


def check_ids(config: Mapping[str, Any]) -> None:
    """Special token ids and the block length of a config.json are whole numbers (end tokens may be several).

    Raises:
        UnsupportedConfig: naming the field.
    """
    for name in ("mask_token_id", "pad_token_id", "bos_token_id", "block_size", "canvas_length"):
        whole(config, name, None, least=1 if name in ("block_size", "canvas_length") else 0)
    if isinstance(config.get("eos_token_id"), list):
        indices(config, "eos_token_id")
    else:
        whole(config, "eos_token_id", None, least=0)


#: Fields of any config.json that say nothing about the computation of logits.
BOOKKEEPING = frozenset(
    {
        "_name_or_path", "architectures", "auto_map", "model_type", "torch_dtype", "dtype", "transformers_version",
        "use_cache", "return_dict", "output_attentions", "output_hidden_states", "initializer_range", "bos_token_id",
        "eos_token_id", "pad_token_id", "mask_token_id", "block_size", "attn_implementation", "_attn_implementation",
        "max_position_embeddings", "id2label", "label2id", "problem_type", "tokenizer_class", "license",
        "task_specific_params",
    }
)  # fmt: skip
