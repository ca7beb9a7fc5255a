"""Named checkpoints: hub ids with the official config fields that determine size. Imports no torch."""

from __future__ import annotations

from dare_bench.dare.families.registry import ModelEntry

_LLADA_8B = {
    "model_type": "llada", "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "mlp_hidden_size": 12288,
    "vocab_size": 126464, "embedding_size": 126464, "max_sequence_length": 4096, "mask_token_id": 126336,
}  # fmt: skip


def _sdar(hidden: int, layers: int, mlp: int, heads: int) -> dict[str, object]:
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

ENTRIES = (
    ModelEntry("tiny-sdar", "sdar", "package:tiny-sdar", None, _TINY_SDAR, "shipped: 1 M weights, block diffusion"),
    ModelEntry(
        "tiny-llada", "llada", "package:tiny-llada", None, _TINY_LLADA, "shipped: 1 M weights, masked diffusion"
    ),
    ModelEntry("llada-8b-base", "llada", "GSAI-ML/LLaDA-8B-Base", None, _LLADA_8B, "masked diffusion, pre-trained"),
    ModelEntry("llada-8b-instruct", "llada", "GSAI-ML/LLaDA-8B-Instruct", None, _LLADA_8B, "masked diffusion, SFT"),
    ModelEntry("llada-1.5", "llada", "GSAI-ML/LLaDA-1.5", None, _LLADA_8B, "LLaDA-8B-Instruct after VRPO"),
    ModelEntry(
        "sdar-1.7b-chat", "sdar", "JetLM/SDAR-1.7B-Chat", None, _sdar(2048, 28, 6144, 16), "block diffusion, block 4"
    ),
    ModelEntry(
        "sdar-4b-chat", "sdar", "JetLM/SDAR-4B-Chat", None, _sdar(2560, 36, 9728, 32), "block diffusion, block 4"
    ),
    ModelEntry(
        "sdar-8b-chat", "sdar", "JetLM/SDAR-8B-Chat", None, _sdar(4096, 36, 12288, 32), "block diffusion, block 4"
    ),
)
