"""Make a very small random checkpoint with a tokenizer: ``python tiny_checkpoint.py FAMILY FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

CONFIGS = {
    "autoregressive": {
        "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True,
    },
    "sdar": {
        "model_type": "sdar", "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "block_size": 8,
    },
    "llada": {
        "model_type": "llada", "d_model": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 64,
        "block_size": 8,
    },
}  # fmt: skip
VOCABULARY = 400


def make(family: str, folder: Path) -> None:
    """Write config, random weights and a tokenizer trained on the shipped questions."""
    from dare_bench.dare.families.facts import Family
    from dare_bench.dare.families.loading import from_config, save
    from dare_bench.dare.families.registry import get_family
    from dare_bench.dare.training.tokenizer import MASK, train_tokenizer
    from dare_bench.suites.benchmarks.registry import get

    facts: Family = get_family(family)
    texts = [f"{row.question} {row.solution}" for row in get("mini_gsm").rows("train", limit=300)]
    tokenizer = train_tokenizer(texts, family, vocab_size=VOCABULARY, chat_template=facts.chat_template)
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    ids = {"eos_token_id": end, "pad_token_id": end}
    if family in MASK:
        ids["mask_token_id"] = tokenizer.convert_tokens_to_ids(MASK[family])
    sizes = {"vocab_size": VOCABULARY} | ({"embedding_size": VOCABULARY} if family == "llada" else {})
    lm = from_config(family, CONFIGS[family] | sizes | ids, seed=0)
    lm.tokenizer = tokenizer
    save(lm, folder)


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
