"""What several families share: arguments of transformers' decoder configs, sizes of configs in its field names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_bench.dare.families.dims import Dims, Experts
from dare_bench.dare.families.facts import number, whole

#: Linear maps of every dense decoder here, by our names.
DENSE_TARGETS = r"model\.layers\.\d+\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)"
#: Mixture networks: attention only; experts are fused tensors, not modules.
ATTENTION_TARGETS = r"model\.layers\.\d+\.self_attn\.(q|k|v|o)_proj"

#: Fields of the Qwen-style configs that `decoder_dims` and `decoder_arguments` read.
DECODER_FIELDS = frozenset(
    {
        "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads",
        "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "hidden_act",
        "tie_word_embeddings", "attention_dropout", "attention_bias",
    }
)  # fmt: skip
#: Switches whose other value no decoder here reproduces.
PLAIN_DECODER = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "tie_word_embeddings": (False,),
    "attention_dropout": (0, None),
}
#: The window is in force only with `use_sliding_window`.
NO_WINDOW = {"use_sliding_window": (False, None)}
WINDOW_FIELDS = frozenset({"use_sliding_window", "sliding_window", "max_window_layers"})


def decoder_dims(
    config: Mapping[str, Any], *, qk_norm: bool = False, qkv_bias: bool = False, experts: Experts | None = None
) -> Dims:
    """Sizes of a config in transformers' field names.

    Args:
        config: official config.json.
        qk_norm, qkv_bias, experts: of the family.
    """
    heads, hidden = whole(config, "num_attention_heads"), whole(config, "hidden_size")
    has_dense = experts is None or bool(experts.dense_layers)
    return Dims(
        layers=whole(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=whole(config, "num_key_value_heads", heads),
        head_dim=whole(config, "head_dim", hidden // heads),
        mlp=whole(config, "intermediate_size") if has_dense else whole(config, "intermediate_size", 0, least=0),
        vocab=whole(config, "vocab_size"),
        qk_norm=qk_norm,
        qkv_bias=qkv_bias,
        tied=bool(config.get("tie_word_embeddings", False)),
        experts=experts,
    )


def decoder_arguments(
    sizes: Dims,
    config: Mapping[str, Any],
    *,
    rope_theta: float,
    eps: float,
    positions: int,
    rotary: float | None = None,
) -> dict[str, Any]:
    """Arguments that all decoder configs of transformers take.

    Args:
        sizes: of the config.
        config: official config.json.
        rope_theta, eps, positions: the family's values where the config says nothing.
        rotary: share of each head that is rotated, for configs that have such a share; null = they have none.
    """
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": float(number(config, "rope_theta", rope_theta))}
    if rotary is not None:  # also when it is 1: the class's own default may be another
        rope["partial_rotary_factor"] = rotary
    return {
        "vocab_size": sizes.vocab,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.mlp,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "rms_norm_eps": number(config, "rms_norm_eps", eps),
        "max_position_embeddings": whole(config, "max_position_embeddings", positions),
        "initializer_range": number(config, "initializer_range", 0.02),
        "rope_parameters": rope,
        "hidden_act": "silu",
        "tie_word_embeddings": sizes.tied,
        "attention_bias": sizes.qkv_bias,
        "attention_dropout": 0.0,
        # pad = EOS is a trained row: nn.Embedding(padding_idx=...) would drop its gradient.
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def qwen3_moe_arguments(sizes: Dims, *, renormalise: bool) -> dict[str, Any]:
    """Arguments of `Qwen3MoeConfig` beside those of every decoder.

    Args:
        sizes: with experts.
        renormalise: the routing weights of the chosen experts are scaled to sum 1.
    """
    experts = sizes.experts
    assert experts is not None
    return {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": experts.width,
        "mlp_only_layers": sorted(experts.dense_layers),
        "decoder_sparse_step": 1,
        "norm_topk_prob": renormalise,
    }
