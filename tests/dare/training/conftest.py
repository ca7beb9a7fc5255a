"""Tiny models with and without tokenizer, examples and runs for the tests of training."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.families import loading
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.training.loop import train
from dare_bench.dare.training.tokenizer import SPECIALS, train_tokenizer

# The configs of the fixtures above this folder, which importlib's import mode does not let us import by name.
TINY = runpy.run_path(str(Path(__file__).resolve().parents[1] / "conftest.py"))["TINY"]
BLOCK = 4
#: Prompt = the text of the first message, nothing around it: toy sequences stay short.
TEMPLATE = "{{ messages[0]['content'] }}"


def config(
    family: str, vocab: int, *, width: int = 32, layers: int = 2, block: int = BLOCK, std: float = 0.2
) -> dict[str, Any]:
    if family == "llada":
        return {
            "model_type": "llada", "d_model": width, "n_layers": layers, "n_heads": 4, "mlp_hidden_size": 2 * width,
            "vocab_size": vocab, "embedding_size": vocab, "block_size": block, "init_std": std,
        }  # fmt: skip
    if family != "sdar":
        sizes = {"vocab_size": vocab, "block_size": block, "initializer_range": std}
        return {**TINY[family], **sizes, "mask_token_id": None, "eos_token_id": None}
    return {
        "model_type": "sdar", "hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 2 * width,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": width // 4, "vocab_size": vocab,
        "block_size": block, "initializer_range": std,
    }  # fmt: skip


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Any]:
    """Byte tokenizers of both families (no merges: one token per byte)."""
    return {
        family: train_tokenizer(["0 1"], family, vocab_size=256 + len(names), chat_template=TEMPLATE)
        for family, names in SPECIALS.items()
    }


@pytest.fixture(scope="session")
def tiny(tokenizers: dict[str, Any]) -> Callable[..., DiffusionLM]:
    """Random models; ``text=True`` gives them a tokenizer, else V = 64."""

    def build(
        family: str, *, text: bool = True, dtype: torch.dtype = torch.float32, seed: int = 0, **sizes: float
    ) -> DiffusionLM:
        tokenizer = tokenizers[family] if text else None
        vocab = len(tokenizer) if text else 64
        special = {"mask_token_id": 63, "eos_token_id": 62}
        if text:
            special = {"mask_token_id": tokenizer.mask_token_id, "eos_token_id": tokenizer.eos_token_id}
        lm = loading.from_config(family, config(family, vocab, **sizes) | special, seed=seed, dtype=dtype)
        return DiffusionLM(lm.family, lm.config, lm.model, tokenizer)

    return build


@pytest.fixture(scope="session")
def examples() -> list[dict[str, Any]]:
    """Twelve prompts of unlike lengths with answers."""
    return [
        {
            "id": f"e{index}",
            "prompt": [{"role": "user", "content": f"{index} " * (1 + index % 3)}],
            "completion": str(index) * (1 + index % 5),
            "answer": str(index),
        }
        for index in range(12)
    ]


def count_ones(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    """A reward that varies within groups: share of characters below 'P'."""
    texts = [completion[0]["content"] for completion in completions]
    return [sum(character < "P" for character in text) / max(len(text), 1) for text in texts]


@pytest.fixture
def reward() -> Callable[..., list[float]]:
    return count_ones


@pytest.fixture
def run(examples: list[dict[str, Any]], tmp_path: Path) -> Callable[..., SimpleNamespace]:
    """Trains, recording points; ``die_at`` raises in `on_point` of that step, as a killed process would stop."""

    def go(
        lm: DiffusionLM,
        algorithm: Any,
        settings: Any,
        *,
        out: str = "run",
        seed: int = 5,
        die_at: int | None = None,
        data: list[dict[str, Any]] | None = None,
        **options: Any,
    ) -> SimpleNamespace:
        points: dict[int, dict[str, float]] = {}
        resumed: list[int] = []

        def on_point(step: int, metrics: dict[str, float], timing: dict[str, float]) -> None:
            if step == die_at:
                raise KeyboardInterrupt
            points[step] = metrics

        if algorithm.needs.rollout != "none":
            options.setdefault("reward_funcs", [count_ones])
            options.setdefault("decoder", DecoderConfig(gen_length=6, steps_per_block=2))
        found = SimpleNamespace(points=points, resumed=resumed, result=None, lm=lm, out=tmp_path / out)
        try:
            found.result = train(
                lm,
                algorithm,
                examples if data is None else data,
                settings,
                seed=seed,
                out_dir=tmp_path / out,
                on_point=on_point,
                on_resume=resumed.append,
                **options,
            )
        except KeyboardInterrupt:
            assert die_at is not None
        return found

    return go
