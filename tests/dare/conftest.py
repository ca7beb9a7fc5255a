"""Fixtures of the dare rooms: the reference folder, and tiny random models whose logits are far from flat."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from dare_bench.dare.families import loading
from dare_bench.dare.families.base import DiffusionLM

REPOSITORY = Path(__file__).resolve().parents[2]
VOCAB, MASK, EOS = 64, 63, 62

TINY: dict[str, dict[str, Any]] = {
    "llada": {
        "model_type": "llada", "d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "mlp_hidden_size": 64,
        "vocab_size": VOCAB, "embedding_size": VOCAB, "block_size": 8, "mask_token_id": MASK, "eos_token_id": EOS,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    },
    "sdar": {
        "model_type": "sdar", "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCAB, "block_size": 4,
        "mask_token_id": MASK, "eos_token_id": EOS, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    },
    "diffusion_gemma": {
        "model_type": "diffusion_gemma", "canvas_length": 8, "eos_token_id": EOS,
        "text_config": {
            "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1,
            "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6, "num_experts": 4,
            "top_k_experts": 2, "moe_intermediate_size": 16, "vocab_size": VOCAB, "pad_token_id": 0,
        },
        "vision_config": {
            "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 24, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4, "position_embedding_size": 8,
        },
    },
    "dream": {
        "model_type": "Dream", "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB, "block_size": 8, "mask_token_id": MASK,
        "eos_token_id": EOS, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    },
    "sdar_moe": {
        "model_type": "sdar_moe", "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCAB, "block_size": 4,
        "mask_token_id": MASK, "eos_token_id": EOS, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True,
    },
    "llada_moe": {
        "model_type": "llada", "architectures": ["LLaDAMoEModel"], "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": VOCAB, "block_size": 8, "mask_token_id": MASK,
        "eos_token_id": EOS, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "num_experts": 6, "num_experts_per_tok": 2,
        "expert_intermediate_size": 24, "dense_intermediate_size": 64, "moe_layer_freq": [1, 1], "qk_layernorm": True,
    },
    "llada2_moe": {
        "model_type": "llada2_moe", "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCAB, "block_size": 4,
        "mask_token_id": MASK, "eos_token_id": EOS, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "num_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 24, "num_shared_experts": 1, "n_group": 4, "topk_group": 2,
        "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "partial_rotary_factor": 0.5, "rotary_dim": 4,
        "use_qk_norm": True, "moe_router_enable_expert_bias": True, "score_function": "sigmoid",
    },
}  # fmt: skip


@pytest.fixture(scope="session")
def reference() -> Path:
    """Folder `fixtures` of the shared reference data; tests that need it are skipped without it."""
    root = Path(os.environ.get("DARE_BENCH_REFERENCE", REPOSITORY.parent / "shared"))
    if not (root / "fixtures").is_dir():
        pytest.skip(f"no reference data at {root}: set DARE_BENCH_REFERENCE to the folder that holds fixtures/")
    return root / "fixtures"


@pytest.fixture(scope="session")
def plain() -> ModuleType:
    """Module `plain_network.py` beside this file: the networks without transformers, batches or caches."""
    spec = importlib.util.spec_from_file_location("plain_network", Path(__file__).with_name("plain_network.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., dict[str, Any]]:
    """`tiny_config(family, **changes)`: official config fields of 2 layers, width 32, vocabulary 64."""
    return lambda family, **changes: TINY[family] | changes


@pytest.fixture(scope="session")
def tiny() -> Callable[..., DiffusionLM]:
    """`tiny(family, seed=0, dtype=torch.float64)`: a random model with logits of standard deviation about 2.

    Float64 by default: rows of a batch may then differ from single runs by 1e-15, which flips no decision.
    """
    return _tiny


@functools.cache
def _tiny(family: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> DiffusionLM:
    lm = loading.from_config(family, TINY[family], seed=seed, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(lm.model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            if name.endswith("bias"):
                fresh = 0.3 * noise
            elif weight.dim() == 1:
                fresh = 1 + 0.2 * noise
            else:
                scale = 2.0 if name == "lm_head.weight" else 1.0
                fresh = noise if "embed" in name else noise * scale * weight.shape[-1] ** -0.5
            weight.copy_(fresh.to(dtype))
        for name, buffer in lm.model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # of the routers: decides which experts, not their weights
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
    return lm
