"""Stores filled with small, known contents. (Tests import nothing from each other: helpers are fixtures.)"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dare_bench.results.store import Store


def sample(name: str, **changed: Any) -> dict[str, Any]:
    columns = {
        "sample_id": name,
        "prompt": "<user>1+1?",
        "question": "1+1?",
        "gold": "2",
        "text": "#### 2",
        "finish_reason": "stop",
        "nfe": 3,
        "row_forwards": 4,
        "positions_fed": 50,
        "kv_read": 600,
        "tokens_committed": 8,
        "tokens_text": 5,
        "flops": 1.5e9,
        "wall_s": 0.25,
    }
    return {**columns, **changed}


def trajectory(**changed: Any) -> dict[str, Any]:
    columns = {
        "token_ids": [5, 6],
        "pieces": ["##", "é"],
        "step_map": [0, 1],
        "confidence": [0.5, 0.25],
        "convention": "row-forward-0",
        "block_starts": [0],
        "kinds": ["denoise", "denoise"],
    }
    return {**columns, **changed}


def training(**changed: Any) -> dict[str, Any]:
    columns = {
        "model": "tiny-sdar",
        "family": "sdar",
        "algorithm": "sft",
        "label": "sft",
        "seed": 0,
        "config": {"lr": 1e-3},
    }
    return {**columns, **changed}


def evaluation(**changed: Any) -> dict[str, Any]:
    columns = {
        "model": "tiny-sdar",
        "family": "sdar",
        "benchmark": "mini_gsm",
        "protocol": "std-1",
        "decoder": {"gen_length": 8},
        "hard_key": "ck1:0123456789abcdef",
        "hard_fields": {"dataset": {"id": "mini_gsm"}},
        "numerics": {"device": "cpu"},
        "data": {"id": "mini_gsm", "split": "test"},
        "n_expected": 2,
    }
    return {**columns, **changed}


def verdict(name: str, value: float = 1.0, **changed: Any) -> dict[str, Any]:
    columns = {
        "sample_id": name,
        "value": value,
        "metrics": {"strict": value, "value": 1.0},
        "extracted": "2",
        "status": "scored",
        "detail": "after ####",
    }
    return {**columns, **changed}


def cell(name: str, key: str, **changed: Any) -> dict[str, Any]:
    columns = {
        "name": name,
        "model": "tiny-sdar",
        "label": "sft",
        "algorithm": "sft",
        "benchmark": "mini_gsm",
        "decoder": "default",
        "seed": 0,
        "training_fingerprint": "t" + key,
        "evaluation_fingerprint": "e" + key,
        "scoring_fingerprint": "s" + key,
    }
    return {**columns, **changed}


@pytest.fixture
def make() -> SimpleNamespace:
    """Builders of rows."""
    return SimpleNamespace(
        sample=sample, trajectory=trajectory, training=training, evaluation=evaluation, verdict=verdict, cell=cell
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs' / 'results.db'}"


@pytest.fixture
def store(url: str) -> Any:
    with Store.open(url) as opened:
        yield opened


@pytest.fixture
def fill() -> Callable[..., int]:
    """Write a whole cell: training, evaluation, scoring; returns the evaluation id."""

    def write(store: Store, key: str, values: list[float], *, environment: int | None = None) -> int:
        run = store.begin_training("t" + key, **training(environment_id=environment))
        store.add_training_points(run, [(step, {"loss": 2.0 / step}, {"step_s": 0.1}) for step in (1, 2)])
        store.finish_training(run, "done", totals={"train_tokens": 100}, wall_s=9.0, checkpoint=(2, "ckpt", "ab" * 32))
        names = [f"q{i}" for i in range(len(values))]
        row = store.begin_evaluation(
            "e" + key, **evaluation(training_run_id=run, n_expected=len(values), environment_id=environment)
        )
        store.add_samples(row, [(sample(name, nfe=i + 1), trajectory()) for i, name in enumerate(names)], 2.0)
        store.finish_evaluation(row, "done", wall_s=3.0)
        scores = [verdict(name, value) for name, value in zip(names, values, strict=True)]
        store.write_scoring("s" + key, row, "number", 1, scores)
        return row

    return write
