"""SDAR (JetLM/SDAR-*-Chat, arXiv 2510.06303): a Qwen3 network with block-causal attention, no shift."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_bench.dare.families.facts import Dims, Family, require
from dare_bench.dare.families.registry import register

# The Qwen3 chat text without tools: no default system message.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def to_transformers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Map the official fields to `Qwen3Config` arguments, refusing switches that change the computation."""
    require(
        config,
        "sdar",
        {
            "hidden_act": ("silu",),
            "attention_bias": (False,),
            "rope_scaling": (None,),
            "use_sliding_window": (False,),
            "tie_word_embeddings": (False,),
        },
    )
    same = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings", "initializer_range",
    )  # fmt: skip
    values = {name: config[name] for name in same if name in config}
    # pad_token_id stays None: pad = EOS is a trained row, and nn.Embedding(padding_idx=...) would drop its gradient.
    return values | {
        "rope_parameters": {"rope_type": "default", "rope_theta": float(config.get("rope_theta", 1e6))},
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def dims(config: Mapping[str, Any]) -> Dims:
    """Sizes of a config."""
    heads = config["num_attention_heads"]
    return Dims(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads", heads),
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        mlp=config["intermediate_size"],
        vocab=config["vocab_size"],
        qk_norm=True,
    )


register(
    Family(
        name="sdar",
        transformers_class="Qwen3ForCausalLM",
        config_class="Qwen3Config",
        block_causal=True,
        matches=lambda config: (
            config.get("model_type") == "sdar" or "SDARForCausalLM" in (config.get("architectures") or ())
        ),
        to_transformers=to_transformers,
        rename=lambda name: name,
        unrename=lambda name: name,
        mask_token_id=151669,
        eos_token_id=151643,
        stop_tokens=("<|im_end|>", "<|endoftext|>"),
        reply_end="<|im_end|>",
        default_block_length=4,
        lora_targets=r"model\.layers\.\d+\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)",
        dims=dims,
        chat_template=CHAT_TEMPLATE,
    )
)
