"""LLaDA-8B and LLaDA-1.5 (GSAI-ML, arXiv 2502.09992): a Llama network with full attention, logit i scores token i."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_bench.dare.families.common import DENSE_TARGETS, decoder_arguments
from dare_bench.dare.families.dims import Dims
from dare_bench.dare.families.facts import BOOKKEEPING, FULL, Family, Network, number, only, require, whole
from dare_bench.dare.families.keys import Tensors, decoder_tensors, renamed, substitute
from dare_bench.dare.families.registry import register

# The released template always opens the assistant's turn, with or without add_generation_prompt.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first %}<|startoftext|>{% endif %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>"
    "{% endfor %}<|start_header_id|>assistant<|end_header_id|>{{ '\n\n' }}"  # jinja drops a bare newline at the end
)

# In a block, `ff_out` is the MLP's down projection; at the top level it is the output head. `ff_proj` is the gate.
_PARTS = {
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
_TOP = {"wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head"}
_official = substitute(
    (
        *(
            (rf"model\.layers\.(\d+)\.{ours}\.weight", rf"model.transformer.blocks.\1.{part}.weight")
            for part, ours in _PARTS.items()
        ),
        *((rf"{ours}\.weight", f"model.transformer.{part}.weight") for part, ours in _TOP.items()),
    )
)


_SWITCHES = {
    "activation_type": ("silu",),
    "block_type": ("llama",),
    "block_group_size": (1,),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "attention_layer_norm": (False,),
    "bias_for_layer_norm": (False, None),
    "include_bias": (False,),
    "include_qkv_bias": (False, None),
    "rope": (True,),
    "alibi": (False,),
    "multi_query_attention": (None, False),
    "scale_logits": (False,),
    "input_emb_norm": (False,),
    "weight_tying": (False,),
    "attention_dropout": (0, None),
    "embedding_dropout": (0, None),
    "residual_dropout": (0, None),
}
# Read above or below, or without effect on logits: initialisation, precision of training, choice of attention kernel.
_KNOWN = BOOKKEEPING | {
    *_SWITCHES, "d_model", "n_layers", "n_heads", "n_kv_heads", "mlp_hidden_size", "mlp_ratio", "vocab_size",
    "embedding_size", "max_sequence_length", "rms_norm_eps", "rope_theta", "rope_full_precision", "alibi_bias_max",
    "attention_layer_norm_with_affine", "init_fn", "init_std", "init_cutoff_factor", "init_device", "precision",
    "flash_attention",
}  # fmt: skip


def network(config: Mapping[str, Any]) -> Network:
    """Map the official fields to `LlamaConfig` arguments, refusing switches that change the computation."""
    require(config, "llada", _SWITCHES)
    only(config, "llada", _KNOWN)
    sizes = dims(config)
    arguments = decoder_arguments(sizes, config, rope_theta=5e5, eps=1e-5, positions=4096)
    arguments["max_position_embeddings"] = whole(config, "max_sequence_length", 4096)
    arguments["initializer_range"] = number(config, "init_std", 0.02)
    return Network("LlamaForCausalLM", "LlamaConfig", arguments)


def tensors(config: Mapping[str, Any]) -> Tensors:
    """Official names."""
    return renamed(decoder_tensors(dims(config)), _official)


def dims(config: Mapping[str, Any]) -> Dims:
    """Sizes of a config."""
    heads, hidden = whole(config, "n_heads"), whole(config, "d_model")
    ratio = None if config.get("mlp_hidden_size") else whole(config, "mlp_ratio")
    return Dims(
        layers=whole(config, "n_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=whole(config, "n_kv_heads", heads),
        head_dim=hidden // heads,
        mlp=whole(config, "mlp_hidden_size") if ratio is None else ratio * hidden,
        vocab=whole(config, "embedding_size") if config.get("embedding_size") else whole(config, "vocab_size"),
    )


def matches(config: Mapping[str, Any]) -> bool:
    """LLaDA-8B and LLaDA-MoE share `model_type: llada`; only the MoE has `num_experts`."""
    return config.get("model_type") == "llada" and "num_experts" not in config and "d_model" in config


register(
    Family(
        name="llada",
        attention=FULL,
        matches=matches,
        network=network,
        tensors=tensors,
        dims=dims,
        mask_token_id=126336,
        eos_token_id=126081,
        stop_tokens=("<|eot_id|>", "<|endoftext|>"),
        reply_end="<|endoftext|>",
        default_block_length=32,
        lora_targets=DENSE_TARGETS,
        chat_template=CHAT_TEMPLATE,
    )
)
