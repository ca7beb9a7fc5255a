"""LLaDA2.0 and LLaDA2.1 (inclusionAI, arXiv 2512.15745): a GLM-4-MoE network with block-causal attention, no shift."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_bench.dare.families import common
from dare_bench.dare.families.dims import Dims, Experts
from dare_bench.dare.families.facts import BLOCK_CAUSAL, BOOKKEEPING, Family, Network, number, only, require, whole
from dare_bench.dare.families.keys import Piece, Tensors, decoder_tensors, substitute
from dare_bench.dare.families.registry import register

# A system turn is always there, it carries the thinking switch; no text in front of it.
CHAT_TEMPLATE = (
    "<role>SYSTEM</role>{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}\n{% endif %}"
    "detailed thinking {{ 'on' if enable_thinking is defined and enable_thinking else 'off' }}<|role_end|>"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<role>HUMAN</role>{{ message['content'] }}<|role_end|>"
    "{% elif message['role'] == 'assistant' %}<role>ASSISTANT</role>{{ message['content'] }}<|role_end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<role>ASSISTANT</role>{% endif %}"
)
_SWITCHES = {
    **common.PLAIN_DECODER,
    **common.NO_WINDOW,
    "attention_bias": (False, None),
    "use_qkv_bias": (False,),
    "use_bias": (False,),
    "use_qk_norm": (True,),
    "use_rmsnorm": (True,),
    "score_function": ("sigmoid",),
    "moe_router_enable_expert_bias": (True,),
    "router_dtype": ("fp32", "float32", None),
    "embedding_dropout": (0, None),
    "output_dropout": (0, None),
}
_IGNORED = {"norm_head", "norm_softmax", "using_split_qkv_in_self_attention", "output_router_logits"}
_KNOWN = BOOKKEEPING | common.DECODER_FIELDS | common.WINDOW_FIELDS | {
    *_SWITCHES, *_IGNORED, "num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_shared_experts", "n_group",
    "topk_group", "first_k_dense_replace", "routed_scaling_factor", "norm_topk_prob", "partial_rotary_factor", "rotary_dim",
    "router_aux_loss_coef", "num_nextn_predict_layers",
}  # fmt: skip
_official = substitute(
    (
        (r"model\.embed_tokens\.weight", "model.word_embeddings.weight"),
        (r"(.*)\.self_attn\.o_proj\.weight", r"\1.attention.dense.weight"),
        (r"(.*)\.self_attn\.q_norm\.weight", r"\1.attention.query_layernorm.weight"),
        (r"(.*)\.self_attn\.k_norm\.weight", r"\1.attention.key_layernorm.weight"),
    )
)
_BIAS = "e_score_correction_bias"


def dims(config: Mapping[str, Any]) -> Dims:
    """Sizes of a config."""
    experts = Experts(
        count=whole(config, "num_experts"),
        per_token=whole(config, "num_experts_per_tok"),
        width=whole(config, "moe_intermediate_size"),
        shared=whole(config, "moe_intermediate_size") * whole(config, "num_shared_experts", 0, least=0),
        dense_layers=frozenset(range(whole(config, "first_k_dense_replace", 0, least=0))),
    )
    return common.decoder_dims(config, qk_norm=True, experts=experts)


def network(config: Mapping[str, Any]) -> Network:
    """Map the official fields to `Glm4MoeConfig` arguments, refusing switches that change the computation."""
    require(config, "llada2_moe", {**_SWITCHES, "num_nextn_predict_layers": (0, None)})
    only(config, "llada2_moe", _KNOWN)
    sizes = dims(config)
    experts = sizes.experts
    assert experts is not None
    rotary = float(number(config, "partial_rotary_factor", 0.5))
    require(config, "llada2_moe", {"rotary_dim": (round(rotary * sizes.head_dim), None)})
    arguments = common.decoder_arguments(sizes, config, rope_theta=6e5, eps=1e-6, positions=32768, rotary=rotary)
    arguments |= {
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": experts.width,
        "n_shared_experts": whole(config, "num_shared_experts", 0, least=0),
        "first_k_dense_replace": len(experts.dense_layers),
        "n_group": whole(config, "n_group", 8),
        "topk_group": whole(config, "topk_group", 4),
        "routed_scaling_factor": float(number(config, "routed_scaling_factor", 2.5)),
        "norm_topk_prob": bool(config.get("norm_topk_prob", True)),
        "use_qk_norm": True,
        "num_nextn_predict_layers": 0,
    }
    return Network("Glm4MoeForCausalLM", "Glm4MoeConfig", arguments)


def tensors(config: Mapping[str, Any]) -> Tensors:
    """Official names: query, key and value maps in one tensor, and the routers' expert bias."""
    for name, pieces in decoder_tensors(dims(config)):
        base, _, part = name.rpartition(".self_attn.")
        if part == "q_proj.weight":
            rows = tuple(Piece(f"{base}.self_attn.{one}_proj.weight") for one in ("q", "k", "v"))
            yield f"{base}.attention.query_key_value.weight", rows
        elif part not in ("k_proj.weight", "v_proj.weight"):
            yield _official(name), pieces
        if name.endswith(".mlp.gate.weight"):
            gate = name.removesuffix(".weight")
            yield f"{gate}.expert_bias", (Piece(f"{gate}.{_BIAS}"),)


register(
    Family(
        name="llada2_moe",
        attention=BLOCK_CAUSAL,
        # `llada2_moe_veomni` is what the authors' training code writes.
        matches=lambda config: (
            config.get("model_type") in ("llada2_moe", "llada2_moe_veomni")
            or "LLaDA2MoeModelLM" in (config.get("architectures") or ())
        ),
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
