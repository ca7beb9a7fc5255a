"""SDAR-30B-A3B (JetLM/SDAR-30B-A3B-*): a Qwen3-MoE network with block-causal attention, no shift."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_bench.dare.families import common, sdar
from dare_bench.dare.families.dims import Dims, Experts
from dare_bench.dare.families.facts import BLOCK_CAUSAL, BOOKKEEPING, Family, Network, indices, only, require, whole
from dare_bench.dare.families.keys import Tensors, decoder_tensors
from dare_bench.dare.families.registry import register

_SWITCHES = {**sdar.SWITCHES, "decoder_sparse_step": (1,), "shared_expert_intermediate_size": (0, None)}
# The auxiliary loss balances experts in pre-training; no objective here uses it.
_KNOWN = BOOKKEEPING | common.DECODER_FIELDS | common.WINDOW_FIELDS | sdar.IGNORED | {
    *_SWITCHES, "num_experts", "num_experts_per_tok", "moe_intermediate_size", "mlp_only_layers", "norm_topk_prob",
    "output_router_logits", "router_aux_loss_coef",
}  # fmt: skip


def dims(config: Mapping[str, Any]) -> Dims:
    """Sizes of a config."""
    experts = Experts(
        count=whole(config, "num_experts"),
        per_token=whole(config, "num_experts_per_tok"),
        width=whole(config, "moe_intermediate_size"),
        dense_layers=frozenset(indices(config, "mlp_only_layers")),
    )
    return common.decoder_dims(config, qk_norm=True, experts=experts)


def network(config: Mapping[str, Any]) -> Network:
    """Map the official fields to `Qwen3MoeConfig` arguments, refusing switches that change the computation."""
    require(config, "sdar_moe", _SWITCHES)
    only(config, "sdar_moe", _KNOWN)
    sizes = dims(config)
    arguments = common.decoder_arguments(sizes, config, rope_theta=1e6, eps=1e-6, positions=32768)
    arguments |= common.qwen3_moe_arguments(sizes, renormalise=bool(config.get("norm_topk_prob", True)))
    return Network("Qwen3MoeForCausalLM", "Qwen3MoeConfig", arguments)


def tensors(config: Mapping[str, Any]) -> Tensors:
    """Official names: those of Qwen3-MoE with separate experts."""
    return decoder_tensors(dims(config))


register(
    Family(
        name="sdar_moe",
        attention=BLOCK_CAUSAL,
        matches=lambda config: (
            config.get("model_type") == "sdar_moe" or "SDARMoeForCausalLM" in (config.get("architectures") or ())
        ),
        network=network,
        tensors=tensors,
        dims=dims,
        mask_token_id=151669,
        eos_token_id=151643,
        stop_tokens=("<|im_end|>", "<|endoftext|>"),
        reply_end="<|im_end|>",
        default_block_length=4,
        lora_targets=common.ATTENTION_TARGETS,
        chat_template=sdar.CHAT_TEMPLATE,
    )
)
