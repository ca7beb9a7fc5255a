"""DiffusionGemma (google/diffusiongemma-*, Gemma 4): a causal encoder feeds the K/V cache of a bidirectional decoder.

Encoder and decoder are the same weights. The decoder refines a canvas of random tokens (there is no mask token) that sees
the encoded prefix and itself; a finished canvas is encoded and the next one begins. Class, names and decoding are those
of the transformers library; here are the facts it needs. Evaluation only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dare_bench.dare.families.canvas import CanvasDims, Layer
from dare_bench.dare.families.dims import Experts
from dare_bench.dare.families.facts import BOOKKEEPING, CAUSAL, Family, Network, UnsupportedConfig, only, require
from dare_bench.dare.families.keys import Piece, Tensors
from dare_bench.dare.families.registry import register

SLIDING, GLOBAL = "sliding_attention", "full_attention"

# Gemma 4's turns; without thinking, the reply begins behind an empty thought channel.
CHAT_TEMPLATE = (
    "{% set thinks = enable_thinking is defined and enable_thinking %}<bos>"
    "{% set has_system = messages[0]['role'] == 'system' %}"
    "{% if thinks or has_system %}<|turn>system\n{% if thinks %}<|think|>{{ '\n' }}{% endif %}"
    "{% if has_system %}{{ messages[0]['content'] | trim }}{% endif %}<turn|>\n{% endif %}"
    "{% for message in (messages[1:] if has_system else messages) %}"
    "<|turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ message['content'] | trim }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n{% if not thinks %}<|channel>thought\n<channel|>{% endif %}{% endif %}"
)

#: The published decoding: 48 steps per canvas at most, temperature 0.8 at the first and falling linearly to half of it,
#: canvas finished early once its most likely tokens repeat and their mean entropy is low.
DEFAULT_DECODER: Mapping[str, Any] = {
    "selector": "entropy_bound",
    "selector_options": {"entropy_bound": 0.1, "stability_threshold": 1, "confidence_threshold": 0.005},
    "steps_per_block": 48,
    "temperature": 0.8,
}

_TOP_FIELDS = frozenset(
    {
        "text_config", "vision_config", "canvas_length", "tie_word_embeddings", "use_bidirectional_attention",
        "boi_token_id", "eoi_token_id", "image_token_id", "boa_token_id", "eoa_token_id", "eoa_token_index",
        "audio_token_id", "video_token_id", "vision_soft_tokens_per_image",
    }
)  # fmt: skip
_TOP_SWITCHES = {"tie_word_embeddings": (True,)}
_TEXT_FIELDS = frozenset(
    {
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_parameters", "sliding_window", "layer_types",
        "final_logit_softcapping", "num_experts", "top_k_experts", "moe_intermediate_size", "global_head_dim",
        "num_global_key_value_heads", "per_layer_config", "vocab_size_per_layer_input",
    }
)  # fmt: skip
_TEXT_SWITCHES = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False,),
    "attention_dropout": (0, None),
    "tie_word_embeddings": (True,),
    "use_bidirectional_attention": (None, "vision"),  # "all" opens the encoder: its cache would no longer be exact
    "sliding_window_pattern": (6,),
    "attention_k_eq_v": (True,),
    "enable_moe_block": (True,),
}
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "num_experts", "top_k_experts", "moe_intermediate_size",
)  # fmt: skip


def dims(config: Mapping[str, Any]) -> CanvasDims:
    """Sizes of a config."""
    text = _text(config)
    layers = tuple(_attention(text))
    return CanvasDims(
        layers=len(layers),
        hidden=text["hidden_size"],
        heads=text["num_attention_heads"],
        kv_heads=text["num_key_value_heads"],
        head_dim=text["head_dim"],
        mlp=text["intermediate_size"],
        vocab=text["vocab_size"],
        qk_norm=True,
        tied=True,
        experts=Experts(
            text["num_experts"], text["top_k_experts"], text["moe_intermediate_size"], shared=text["intermediate_size"]
        ),
        attention=layers,
        window=text.get("sliding_window", 512),
        vision=_vision_weights(_vision(config), text["hidden_size"]),
    )


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    missing = [name for name in _SIZES if not isinstance((text or {}).get(name), int)]
    if missing:
        raise UnsupportedConfig(
            f"diffusion_gemma: text_config of config.json lacks {', '.join(missing)}; a whole number is needed for each"
        )
    return text


def _attention(text: Mapping[str, Any]) -> Iterator[Layer]:
    count = text["num_hidden_layers"]
    types = list(text.get("layer_types") or [SLIDING if (i + 1) % 6 else GLOBAL for i in range(count)])
    if len(types) != count or not set(types) <= {SLIDING, GLOBAL} or types[-1] != GLOBAL:
        raise UnsupportedConfig(
            f"diffusion_gemma: layer_types is {types}; needed: {count} of {SLIDING!r} or {GLOBAL!r}, the last {GLOBAL!r}"
        )
    # Saved by transformers, the widths of the full layers stand in per_layer_config; as released, in two fields.
    listed = text.get("per_layer_config")
    wide = {"head_dim": text.get("global_head_dim", 512)}
    if text.get("num_global_key_value_heads") is not None:
        wide["num_key_value_heads"] = text["num_global_key_value_heads"]
    for index, kind in enumerate(types):
        if listed is None:
            own = wide if kind == GLOBAL else {}
        else:
            own = listed.get(str(index)) or listed.get(index) or {}
        kv_heads, head_dim = (own.get(name, text[name]) for name in ("num_key_value_heads", "head_dim"))
        yield Layer(kind == SLIDING, kv_heads, head_dim)


_VISION = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
    "num_key_value_heads": 12, "head_dim": 64, "patch_size": 16, "position_embedding_size": 10240,
    "standardize": False, "use_clipped_linears": False,
}  # fmt: skip


def _vision(config: Mapping[str, Any]) -> dict[str, Any]:
    given = config.get("vision_config") or {}
    return {name: given.get(name, default) for name, default in _VISION.items()}


def _vision_weights(vision: Mapping[str, Any], text_hidden: int) -> int:
    hidden, head = vision["hidden_size"], vision["head_dim"]
    maps = 2 * (vision["num_attention_heads"] + vision["num_key_value_heads"]) * head * hidden
    layer = maps + 2 * head + 3 * hidden * vision["intermediate_size"] + 4 * hidden
    patches = 2 * vision["position_embedding_size"] * hidden + 3 * vision["patch_size"] ** 2 * hidden
    return vision["num_hidden_layers"] * layer + patches + hidden * text_hidden


def network(config: Mapping[str, Any]) -> Network:
    """Hand the fields to `DiffusionGemmaConfig`, refusing those that nobody has looked at.

    The vision tower is built and loaded as it is, so that a checkpoint is read and written whole; text does not pass it.
    """
    require(config, "diffusion_gemma", _TOP_SWITCHES)
    only(config, "diffusion_gemma", BOOKKEEPING | _TOP_FIELDS)
    text = dict(_text(config))
    require(text, "diffusion_gemma text_config", _TEXT_SWITCHES)
    only(text, "diffusion_gemma text_config", BOOKKEEPING | _TEXT_FIELDS | {*_TEXT_SWITCHES})
    arguments = {name: config[name] for name in _TOP_FIELDS if config.get(name) is not None}
    parts = {"text_config": text, "vision_config": {**(config.get("vision_config") or {}), **_vision(config)}}
    for part in parts.values():
        for name in ("dtype", "torch_dtype", "_attn_implementation", "attn_implementation"):
            part.pop(name, None)  # the loader's to choose
    parts["vision_config"]["model_type"] = "gemma4_vision"
    parts["text_config"]["layer_types"] = [SLIDING if layer.sliding else GLOBAL for layer in _attention(text)]
    canvas = config.get("block_size") or config.get("canvas_length") or 256
    return Network(
        "DiffusionGemmaForBlockDiffusion", "DiffusionGemmaConfig", {**arguments, **parts, "canvas_length": canvas}
    )


def tensors(config: Mapping[str, Any]) -> Tensors:
    """Official names: the decoder's for everything it shares with the encoder, and the encoder's scalars and vision."""
    for name in _names(config):
        yield name, (Piece(name),)


def _names(config: Mapping[str, Any]) -> Iterator[str]:
    yield "model.decoder.embed_tokens.weight"
    for index, layer in enumerate(_attention(_text(config))):
        at = f"model.decoder.layers.{index}"
        maps = ("q_proj", "k_proj", "v_proj", "o_proj") if layer.sliding else ("q_proj", "k_proj", "o_proj")
        yield from (f"{at}.self_attn.{part}.weight" for part in (*maps, "q_norm", "k_norm"))
        yield from (f"{at}.mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
        yield from (f"{at}.{norm}layernorm.weight" for norm in ("input_", "post_attention_"))
        yield from (f"{at}.pre_feedforward_layernorm{which}.weight" for which in ("", "_2"))
        yield from (f"{at}.post_feedforward_layernorm{which}.weight" for which in ("", "_1", "_2"))
        yield from (f"{at}.router.{part}" for part in ("proj.weight", "scale", "per_expert_scale"))
        yield from (f"{at}.experts.{part}" for part in ("gate_up_proj", "down_proj"))
        yield from (f"{side}.layers.{index}.layer_scalar" for side in ("model.decoder", "model.encoder.language_model"))
    yield "model.decoder.norm.weight"
    yield from (f"model.decoder.self_conditioning.{part}.weight" for part in ("pre_norm", "gate_proj", "up_proj"))
    yield "model.decoder.self_conditioning.down_proj.weight"
    yield "model.encoder.embed_vision.embedding_projection.weight"
    yield from (f"model.encoder.vision_tower.{name}" for name in _vision_names(_vision(config)))


def _vision_names(vision: Mapping[str, Any]) -> Iterator[str]:
    yield from ("patch_embedder.position_embedding_table", "patch_embedder.input_proj.weight")
    limits = ("input_min", "input_max", "output_min", "output_max") if vision["use_clipped_linears"] else ()
    for index in range(vision["num_hidden_layers"]):
        at = f"encoder.layers.{index}"
        for part in (*(f"self_attn.{x}_proj" for x in "qkvo"), *(f"mlp.{x}_proj" for x in ("gate", "up", "down"))):
            yield f"{at}.{part}.linear.weight"
            yield from (f"{at}.{part}.{limit}" for limit in limits)
        yield from (f"{at}.self_attn.{norm}.weight" for norm in ("q_norm", "k_norm"))
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield f"{at}.{norm}_layernorm.weight"
    if vision["standardize"]:
        yield from ("std_bias", "std_scale")


register(
    Family(
        name="diffusion_gemma",
        attention=CAUSAL,
        matches=lambda config: (
            config.get("model_type") == "diffusion_gemma"
            or "DiffusionGemmaForBlockDiffusion" in (config.get("architectures") or ())
        ),
        network=network,
        tensors=tensors,
        dims=dims,
        mask_token_id=None,
        eos_token_id=1,
        stop_tokens=("<turn|>", "<eos>", "<|tool_response>"),
        reply_end="<turn|>",
        default_block_length=256,
        lora_targets=r"model\.decoder\.layers\.\d+\.self_attn\.(q|k|v|o)_proj",
        chat_template=CHAT_TEMPLATE,
        engine="diffusion_gemma",
        trainer=None,
        decoder_fields=frozenset({"name", "gen_length", "steps_per_block", "temperature", "early_stop"}),
        default_decoder=DEFAULT_DECODER,
    )
)
