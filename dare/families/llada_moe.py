"""LLaDA-MoE-7B-A1B (inclusionAI, arXiv 2509.24389): a Qwen3-MoE network with full attention, routing not renormalised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_bench.dare.families import common
from dare_bench.dare.families.dims import Dims, Experts
from dare_bench.dare.families.facts import (
    BOOKKEEPING,
    FULL,
    Family,
    Network,
    UnsupportedConfig,
    indices,
    only,
    require,
    whole,
)
from dare_bench.dare.families.keys import Tensors, decoder_tensors
from dare_bench.dare.families.llada2_moe import CHAT_TEMPLATE
from dare_bench.dare.families.registry import register

_SWITCHES = {
    **common.PLAIN_DECODER,
    "attention_bias": (False,),
    "clip_qkv": (None,),
    "qk_layernorm": (True,),
    "partial_rotary_factor": (1, None),
    "shared_expert_intermediate_size": (0, None),
    # Would be added after the softmax and stay in the weights.
    "moe_router_enable_expert_bias": (False, None),
    "moe_router_score_function": ("softmax", None),
}
# The released code reads none of the routing switches below: the weights are the plain softmax values of the chosen.
_IGNORED = {"norm_topk_prob", "router_num_group", "router_topk_group", "routed_scaling_factor"}
_KNOWN = BOOKKEEPING | common.DECODER_FIELDS | {
    *_SWITCHES, *_IGNORED, "num_experts", "num_experts_per_tok", "expert_intermediate_size", "dense_intermediate_size",
    "moe_layer_freq", "output_router_logits", "router_aux_loss_coef",
}  # fmt: skip


def dims(config: Mapping[str, Any]) -> Dims:
    """Sizes of a config."""
    layers = whole(config, "num_hidden_layers")
    frequency = indices(config, "moe_layer_freq") or [1] * layers
    if len(frequency) != layers:
        raise UnsupportedConfig(
            f"llada_moe: config field 'moe_layer_freq' has {len(frequency)} entries, needed: one for each of {layers} layers"
        )
    experts = Experts(
        count=whole(config, "num_experts"),
        per_token=whole(config, "num_experts_per_tok"),
        width=whole(config, "expert_intermediate_size"),
        dense_layers=frozenset(layer for layer, is_moe in enumerate(frequency) if not is_moe),
    )
    named = {**config, "intermediate_size": config.get("dense_intermediate_size")}
    return common.decoder_dims(named, qk_norm=True, experts=experts)


def network(config: Mapping[str, Any]) -> Network:
    """Map the official fields to `Qwen3MoeConfig` arguments, refusing switches that change the computation."""
    require(config, "llada_moe", _SWITCHES)
    only(config, "llada_moe", _KNOWN)
    sizes = dims(config)
    arguments = common.decoder_arguments(sizes, config, rope_theta=50000.0, eps=1e-5, positions=8192)
    arguments |= common.qwen3_moe_arguments(sizes, renormalise=False)
    return Network("Qwen3MoeForCausalLM", "Qwen3MoeConfig", arguments)


def tensors(config: Mapping[str, Any]) -> Tensors:
    """Official names: those of Qwen3-MoE with separate experts."""
    return decoder_tensors(dims(config))


register(
    Family(
        name="llada_moe",
        attention=FULL,
        matches=lambda config: config.get("model_type") == "llada" and "num_experts" in config,
        network=network,
        tensors=tensors,
        dims=dims,
        mask_token_id=156895,
        eos_token_id=156892,
        stop_tokens=("<|role_end|>", "<|endoftext|>"),
        reply_end="<|role_end|>",
        default_block_length=32,
        lora_targets=common.ATTENTION_TARGETS,
        chat_template=CHAT_TEMPLATE,
    )
)
