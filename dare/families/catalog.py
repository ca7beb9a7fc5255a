"""Named checkpoints: hub ids with the official config fields that determine size. Imports no torch."""

from __future__ import annotations

from dare_bench.dare.families.registry import ModelEntry

_Config = dict[str, object]

_LLADA_8B = {
    "model_type": "llada", "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "mlp_hidden_size": 12288,
    "vocab_size": 126464, "embedding_size": 126464, "max_sequence_length": 4096, "mask_token_id": 126336,
}  # fmt: skip


def _sdar(hidden: int, layers: int, mlp: int, heads: int) -> _Config:
    return {
        "model_type": "sdar", "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": mlp,
        "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "block_size": 4, "mask_token_id": 151669, "max_position_embeddings": 32768,
    }  # fmt: skip


_TINY_SDAR = {
    "architectures": ["SDARForCausalLM"], "model_type": "sdar", "hidden_size": 128, "num_hidden_layers": 4,
    "intermediate_size": 352, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 512,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000, "rope_scaling": None, "attention_bias": False,
    "attention_dropout": 0.0, "tie_word_embeddings": False, "use_sliding_window": False, "initializer_range": 0.02,
    "max_position_embeddings": 32768, "block_size": 8,
}  # fmt: skip
_TINY_LLADA = {
    "architectures": ["LLaDAModelLM"], "model_type": "llada", "d_model": 128, "n_layers": 4, "n_heads": 4,
    "n_kv_heads": 4, "mlp_hidden_size": 352, "vocab_size": 512, "embedding_size": 512, "max_sequence_length": 4096,
    "activation_type": "silu", "block_type": "llama", "layer_norm_type": "rms", "rms_norm_eps": 1e-5, "rope": True,
    "rope_theta": 500000.0, "include_bias": False, "include_qkv_bias": False, "weight_tying": False, "alibi": False,
    "attention_layer_norm": False, "input_emb_norm": False, "scale_logits": False, "init_std": 0.02, "block_size": 8,
}  # fmt: skip


def _qwen(model_type: str, hidden: int, layers: int, mlp: int, heads: int, kv_heads: int, **more: object) -> _Config:
    """Fields of a Qwen-style config."""
    return {
        "model_type": model_type, "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": mlp,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": False, **more,
    }  # fmt: skip


_DREAM = _qwen(
    "Dream", 3584, 28, 18944, 28, 4, vocab_size=152064, max_position_embeddings=131072, mask_token_id=151666,
    bos_token_id=151643, eos_token_id=151643, pad_token_id=151643,
)  # fmt: skip
_SDAR_MOE = _qwen(
    "sdar_moe", 2048, 48, 6144, 32, 4, head_dim=128, vocab_size=151936, max_position_embeddings=32768, num_experts=128,
    num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True,
    attention_bias=False, bos_token_id=151643, eos_token_id=151643,
)  # fmt: skip
_LLADA_MOE = {
    "model_type": "llada", "architectures": ["LLaDAMoEModel"], "hidden_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
    "expert_intermediate_size": 1024, "dense_intermediate_size": 8192, "moe_layer_freq": [1] * 16, "qk_layernorm": True,
    "rms_norm_eps": 1e-5, "rope_theta": 50000, "partial_rotary_factor": 1, "attention_bias": False, "vocab_size": 157184,
    "max_position_embeddings": 8192, "eos_token_id": 156892, "pad_token_id": 156892, "tie_word_embeddings": False,
}  # fmt: skip


def _llada2(hidden: int, layers: int, mlp: int, heads: int, expert: int) -> _Config:
    return _qwen(
        "llada2_moe", hidden, layers, mlp, heads, 4, head_dim=128, vocab_size=157184, max_position_embeddings=32768,
        num_experts=256, num_experts_per_tok=8, moe_intermediate_size=expert, n_group=8, topk_group=4, num_shared_experts=1,
        first_k_dense_replace=1, routed_scaling_factor=2.5, score_function="sigmoid", moe_router_enable_expert_bias=True,
        norm_topk_prob=True, use_qk_norm=True, use_qkv_bias=False, use_bias=False, partial_rotary_factor=0.5, rotary_dim=64,
        pad_token_id=156892,
    ) | {"rope_theta": 600000}  # fmt: skip


def _qwen25(hidden: int, layers: int, mlp: int, heads: int, kv_heads: int, vocab: int, *, tied: bool) -> _Config:
    return _qwen("qwen2", hidden, layers, mlp, heads, kv_heads, vocab_size=vocab, max_position_embeddings=32768) | {
        "tie_word_embeddings": tied, "bos_token_id": 151643, "eos_token_id": 151645,
    }  # fmt: skip


def _qwen3(hidden: int, layers: int, mlp: int, heads: int, *, tied: bool) -> _Config:
    return _qwen(
        "qwen3", hidden, layers, mlp, heads, 8, head_dim=128, vocab_size=151936, max_position_embeddings=40960,
        attention_bias=False,
    ) | {"tie_word_embeddings": tied, "bos_token_id": 151643, "eos_token_id": 151645}  # fmt: skip


_DIFFUSION, _BLOCK, _AR = "masked diffusion", "block diffusion, block 4", "autoregressive baseline"
_BLOCK32 = "block diffusion, block 32, mixture of experts"
_MINI, _FLASH = _llada2(2048, 20, 5120, 16, 512), _llada2(4096, 32, 9216, 32, 1024)


def _hub(name: str, family: str, source: str, config: _Config, description: str) -> ModelEntry:
    return ModelEntry(name, family, source, None, config, description)


ENTRIES = (
    ModelEntry("tiny-sdar", "sdar", "package:tiny-sdar", None, _TINY_SDAR, "shipped: 1 M weights, block diffusion"),
    ModelEntry(
        "tiny-llada", "llada", "package:tiny-llada", None, _TINY_LLADA, "shipped: 1 M weights, masked diffusion"
    ),
    _hub("llada-8b-base", "llada", "GSAI-ML/LLaDA-8B-Base", _LLADA_8B, f"{_DIFFUSION}, pre-trained"),
    _hub("llada-8b-instruct", "llada", "GSAI-ML/LLaDA-8B-Instruct", _LLADA_8B, f"{_DIFFUSION}, SFT"),
    _hub("llada-1.5", "llada", "GSAI-ML/LLaDA-1.5", _LLADA_8B, "LLaDA-8B-Instruct after VRPO"),
    _hub(
        "llada-moe-base",
        "llada_moe",
        "inclusionAI/LLaDA-MoE-7B-A1B-Base",
        _LLADA_MOE,
        f"{_DIFFUSION}, mixture of experts",
    ),
    _hub("llada-moe-instruct", "llada_moe", "inclusionAI/LLaDA-MoE-7B-A1B-Instruct", _LLADA_MOE, f"{_DIFFUSION}, SFT"),
    _hub("dream-7b-base", "dream", "Dream-org/Dream-v0-Base-7B", _DREAM, f"{_DIFFUSION}, from Qwen2.5-7B"),
    _hub("dream-7b-instruct", "dream", "Dream-org/Dream-v0-Instruct-7B", _DREAM, f"{_DIFFUSION}, SFT"),
    _hub("diffucoder-7b-base", "dream", "apple/DiffuCoder-7B-Base", _DREAM, f"{_DIFFUSION}, code"),
    _hub("diffucoder-7b-instruct", "dream", "apple/DiffuCoder-7B-Instruct", _DREAM, f"{_DIFFUSION}, code, SFT"),
    _hub("diffucoder-7b-cpgrpo", "dream", "apple/DiffuCoder-7B-cpGRPO", _DREAM, f"{_DIFFUSION}, code, coupled-GRPO"),
    _hub("sdar-1.7b-chat", "sdar", "JetLM/SDAR-1.7B-Chat", _sdar(2048, 28, 6144, 16), _BLOCK),
    _hub("sdar-4b-chat", "sdar", "JetLM/SDAR-4B-Chat", _sdar(2560, 36, 9728, 32), _BLOCK),
    _hub("sdar-8b-chat", "sdar", "JetLM/SDAR-8B-Chat", _sdar(4096, 36, 12288, 32), _BLOCK),
    _hub("sdar-30b-a3b-chat", "sdar_moe", "JetLM/SDAR-30B-A3B-Chat", _SDAR_MOE, f"{_BLOCK}, mixture of experts"),
    _hub("sdar-30b-a3b-sci", "sdar_moe", "JetLM/SDAR-30B-A3B-Sci", _SDAR_MOE, f"{_BLOCK}, science"),
    _hub("llada2.0-mini", "llada2_moe", "inclusionAI/LLaDA2.0-mini", _MINI, _BLOCK32),
    _hub(
        "llada2.0-mini-cap", "llada2_moe", "inclusionAI/LLaDA2.0-mini-CAP", _MINI, f"{_BLOCK32}, for parallel decoding"
    ),
    _hub("llada2.0-flash", "llada2_moe", "inclusionAI/LLaDA2.0-flash", _FLASH, _BLOCK32),
    _hub(
        "llada2.0-flash-cap",
        "llada2_moe",
        "inclusionAI/LLaDA2.0-flash-CAP",
        _FLASH,
        f"{_BLOCK32}, for parallel decoding",
    ),
    _hub("llada2.1-mini", "llada2_moe", "inclusionAI/LLaDA2.1-mini", _MINI, f"{_BLOCK32}, edits tokens"),
    _hub("llada2.1-flash", "llada2_moe", "inclusionAI/LLaDA2.1-flash", _FLASH, f"{_BLOCK32}, edits tokens"),
    *(
        _hub(f"qwen2.5-{size.lower()}-instruct", "autoregressive", f"Qwen/Qwen2.5-{size}-Instruct", config, _AR)
        for size, config in (
            ("0.5B", _qwen25(896, 24, 4864, 14, 2, 151936, tied=True)),
            ("1.5B", _qwen25(1536, 28, 8960, 12, 2, 151936, tied=True)),
            ("3B", _qwen25(2048, 36, 11008, 16, 2, 151936, tied=True)),
            ("7B", _qwen25(3584, 28, 18944, 28, 4, 152064, tied=False)),
        )
    ),
    *(
        _hub(f"qwen3-{size.lower()}", "autoregressive", f"Qwen/Qwen3-{size}", config, _AR)
        for size, config in (
            ("0.6B", _qwen3(1024, 28, 3072, 16, tied=True)),
            ("1.7B", _qwen3(2048, 28, 6144, 16, tied=True)),
            ("4B", _qwen3(2560, 36, 9728, 32, tied=True)),
            ("8B", _qwen3(4096, 36, 12288, 32, tied=False)),
        )
    ),
)
