"""Tiny random checkpoints of every family, as data: they show that a pipeline works, and nothing else. Imports no torch.

A checkpoint is made when it is first needed (`dare.training.random_checkpoint`); what identifies it is its name, the
version of how it is made, its config and its seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dare_bench.dare.families.registry import ModelEntry

PREFIX = "random:"
#: Raised with every change of what is written for the same config and seed.
VERSION = 1
SEED = 0
VOCAB = 300
BLOCK = 8

_SIZES = {
    "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "max_position_embeddings": 32768, "tie_word_embeddings": False,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}

#: Family -> config, without the ids of special tokens: those come from the tokenizer.
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "autoregressive": _SIZES | {"model_type": "qwen3", "attention_bias": False},
    "diffusion_gemma": {
        "model_type": "diffusion_gemma", "canvas_length": BLOCK, "tie_word_embeddings": True,
        "text_config": {
            "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1,
            "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64, "num_experts": 4,
            "top_k_experts": 2, "moe_intermediate_size": 32, "vocab_size": VOCAB, "max_position_embeddings": 32768,
        },
        "vision_config": {
            "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 24, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4, "position_embedding_size": 8,
        },
    },
    "dream": {key: value for key, value in _SIZES.items() if key != "head_dim"} | {
        "model_type": "Dream", "block_size": BLOCK,
    },
    "llada": {
        "model_type": "llada", "d_model": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "mlp_hidden_size": 128,
        "vocab_size": VOCAB, "embedding_size": VOCAB, "max_sequence_length": 32768, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "block_size": BLOCK,
    },
    "llada2_moe": _SIZES | _EXPERTS | {
        "model_type": "llada2_moe", "num_hidden_layers": 3, "moe_intermediate_size": 32, "num_shared_experts": 1,
        "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
        "partial_rotary_factor": 0.5, "rotary_dim": 8, "use_qk_norm": True, "moe_router_enable_expert_bias": True,
        "score_function": "sigmoid", "block_size": BLOCK,
    },
    "llada_moe": {key: value for key, value in _SIZES.items() if key not in ("intermediate_size", "head_dim")}
    | _EXPERTS | {
        "model_type": "llada", "architectures": ["LLaDAMoEModel"], "expert_intermediate_size": 32,
        "dense_intermediate_size": 128, "moe_layer_freq": [1, 1], "qk_layernorm": True, "block_size": BLOCK,
    },
    "sdar": _SIZES | {"model_type": "sdar", "block_size": BLOCK},
    "sdar_moe": _SIZES | _EXPERTS | {
        "model_type": "sdar_moe", "moe_intermediate_size": 32, "norm_topk_prob": True, "block_size": BLOCK,
    },
}  # fmt: skip

ENTRIES = tuple(
    ModelEntry(
        f"random-{family.replace('_', '-')}", family, f"{PREFIX}{family}", None, config,
        "tiny random weights: shows that the pipeline works",
    )
    for family, config in CONFIGS.items()
)  # fmt: skip


def by_source(source: str) -> ModelEntry | None:
    """The entry of a source ``random:FAMILY``, or null."""
    return next((entry for entry in ENTRIES if entry.source == source), None)


def identity(source: str) -> dict[str, Any]:
    """What identifies a random checkpoint.

    Args:
        source: ``random:FAMILY``.

    Raises:
        KeyError: no such checkpoint.
    """
    name = source.removeprefix(PREFIX)
    config = json.dumps(CONFIGS[name], sort_keys=True)
    digest = hashlib.sha256(config.encode()).hexdigest()
    return {"random": name, "version": VERSION, "config_sha256": digest, "seed": SEED}


def folder_name(source: str) -> str:
    """Name of a random checkpoint's folder, unlike for unlike identities."""
    text = json.dumps(identity(source), sort_keys=True)
    return f"{source.removeprefix(PREFIX)}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
