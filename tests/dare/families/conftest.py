"""Fixtures of the family tests: a stored checkpoint of every family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from dare_bench.dare.families import loading
from dare_bench.dare.families.base import DiffusionLM

FAMILIES = ("llada", "dream", "sdar", "sdar_moe", "llada_moe", "llada2_moe", "autoregressive", "diffusion_gemma")


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """Every family in turn."""
    return request.param


@pytest.fixture
def model(tiny: Callable[..., DiffusionLM], tiny_config: Callable[..., dict]) -> Callable[..., DiffusionLM]:
    """`model(family)`: a tiny float32 model, the same each time; not to be changed."""

    def build(name: str) -> DiffusionLM:
        if name == "autoregressive":
            return loading.from_config(name, tiny_config("sdar") | {"model_type": "qwen3"}, seed=0)
        return tiny(name, dtype=torch.float32)

    return build


@pytest.fixture
def checkpoint(tmp_path: Path, model: Callable[..., DiffusionLM], family: str) -> Path:
    """A folder with a small float32 checkpoint."""
    return loading.save(model(family), tmp_path / "model")
