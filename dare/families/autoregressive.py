"""Autoregressive baselines: Qwen2.5 and Qwen3, dense, by transformers' own classes; logit i scores token i + 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_bench.dare.families import common
from dare_bench.dare.families.dims import Dims
from dare_bench.dare.families.facts import BOOKKEEPING, CAUSAL, Family, Network, UnsupportedConfig, only, require
from dare_bench.dare.families.keys import Tensors, decoder_tensors
from dare_bench.dare.families.registry import register

# ChatML. Qwen2.5 inserts a system message where none is given, Qwen3 does not.
CHAT_TEMPLATE = (
    "{% if model_type == 'qwen2' and messages[0]['role'] != 'system' %}<|im_start|>system\n"
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"
)

#: model_type -> switches whose other value is another network.
_SWITCHES: dict[str, dict[str, tuple[Any, ...]]] = {
    "qwen2": {"use_mrope": (False, None), "attention_bias": (True, None)},
    "qwen3": {"attention_bias": (False, None)},
}
_COMMON = {**common.PLAIN_DECODER, **common.NO_WINDOW, "tie_word_embeddings": (False, True)}
_KNOWN = BOOKKEEPING | common.DECODER_FIELDS | common.WINDOW_FIELDS | {"use_mrope", "rope_parameters", "layer_types"}
_CLASSES = {"qwen2": ("Qwen2ForCausalLM", "Qwen2Config"), "qwen3": ("Qwen3ForCausalLM", "Qwen3Config")}


def dims(config: Mapping[str, Any]) -> Dims:
    """Sizes of a config."""
    is_qwen3 = config.get("model_type") == "qwen3"
    sized = config
    if is_qwen3 and not config.get("head_dim"):
        sized = {**config, "head_dim": 128}  # the default of Qwen3's config class, whatever the width
    return common.decoder_dims(sized, qk_norm=is_qwen3, qkv_bias=not is_qwen3)


def network(config: Mapping[str, Any]) -> Network:
    """Map the official fields to `Qwen2Config` or `Qwen3Config`, refusing switches that change the computation."""
    kind = config.get("model_type")
    if kind not in _CLASSES:
        raise UnsupportedConfig(
            f"autoregressive: config field 'model_type' is {kind!r}, supported: {' or '.join(map(repr, _CLASSES))}"
        )
    require(config, "autoregressive", {**_COMMON, **_SWITCHES[kind]})
    only(config, "autoregressive", _KNOWN)
    layers = set(config.get("layer_types") or ()) - {"full_attention"}
    if layers:
        raise UnsupportedConfig(
            f"autoregressive: config field 'layer_types' has {', '.join(sorted(layers))}, supported: 'full_attention'"
        )
    arguments = common.decoder_arguments(
        dims(config), {**config, **_rope(config)}, rope_theta=1e4, eps=1e-6, positions=32768
    )
    if kind == "qwen2":
        # Always biases on q, k, v and none on o; the head size follows from the width.
        del arguments["attention_bias"], arguments["head_dim"]
    return Network(*_CLASSES[kind], arguments)


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_theta` of a config that transformers 5 has written (``rope_parameters``)."""
    rope = config.get("rope_parameters")
    if not rope:
        return {}
    allowed = {"rope_type": ("default",), "partial_rotary_factor": (1.0,)}
    require({key: value for key, value in rope.items() if key != "rope_theta"}, "autoregressive", allowed)
    only(rope, "autoregressive", frozenset({"rope_theta", *allowed}))
    return {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}


def tensors(config: Mapping[str, Any]) -> Tensors:
    """Official names: those of the network."""
    return decoder_tensors(dims(config))


register(
    Family(
        name="autoregressive",
        attention=CAUSAL,
        matches=lambda config: config.get("model_type") in _CLASSES,
        network=network,
        tensors=tensors,
        dims=dims,
        mask_token_id=None,
        eos_token_id=151643,
        stop_tokens=("<|im_end|>", "<|endoftext|>"),
        reply_end="<|im_end|>",
        default_block_length=1,
        lora_targets=common.DENSE_TARGETS,
        chat_template=CHAT_TEMPLATE,
        shift=1,
        engine="autoregressive",
        trainer="autoregressive",
        decoder_fields=frozenset({"name", "gen_length", "temperature", "early_stop"}),
    )
)
