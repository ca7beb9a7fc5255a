"""Locating weights: folders, adapters, the hub cache; what identifies them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dare_bench.harness.weights import locate


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "sdar"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Callable[..., Path]:
    def write(name: str, weights: bytes = b"adapter", **settings: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        described = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": str(base), **settings}
        (folder / "adapter_config.json").write_text(json.dumps(described))
        (folder / "adapter_model.safetensors").write_bytes(weights)
        return folder

    return write


def test_an_adapter_is_its_files_and_its_base(adapter: Callable[..., Path], base: Path, tmp_path: Path) -> None:
    first = locate("m", str(adapter("a")), None)
    assert first.missing is None and first.folder == tmp_path / "a"
    assert first.identity["base"] == locate("m", str(base), None).identity
    assert locate("m", str(adapter("b", b"other")), None).identity != first.identity
    assert locate("m", str(adapter("c", r=4)), None).identity != first.identity
    moved = tmp_path / "moved"
    base.rename(moved)
    assert locate("m", str(adapter("d", base_model_name_or_path=str(moved))), None).identity == first.identity
    gone = locate("m", str(tmp_path / "a"), None)
    assert gone.folder is None and "its base cannot be read" in str(gone.missing) and str(base) in str(gone.missing)


def test_an_adapter_of_a_shipped_model(adapter: Callable[..., Path]) -> None:
    found = locate("m", str(adapter("a", base_model_name_or_path="tiny-sdar")), None)
    assert found.missing is None
    assert found.identity["base"] == locate("tiny-sdar", "package:tiny-sdar", None).identity


def test_what_is_missing_from_a_folder(adapter: Callable[..., Path], base: Path) -> None:
    folder = adapter("a")
    (folder / "adapter_model.safetensors").unlink()
    assert "no adapter_model.safetensors" in str(locate("m", str(folder), None).missing)
    (base / "model.safetensors.index.json").write_text('{"weight_map": {"x": "model-2.safetensors"}}')
    assert "missing weight file(s) model-2.safetensors" in str(locate("m", str(base), None).missing)
    (base / "model.safetensors.index.json").write_text("[]")
    assert "not a weight index" in str(locate("m", str(base), None).missing)
    assert "neither a folder nor a hub id" in str(locate("m", "owner/na me", None).missing)


def test_the_hub_cache(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = tmp_path / "hub" / "models--owner--model" / "snapshots"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshots.mkdir(parents=True)
    base.rename(snapshots / ("b" * 40))
    found = locate("m", "owner/model", "b" * 40)
    assert found.missing is None and found.identity == {"hub": "owner/model", "revision": "b" * 40}
    assert "hf download owner/model`" in str(locate("m", "owner/model", None).missing)  # no branch points at it
    (snapshots.parent / "refs").mkdir()
    (snapshots.parent / "refs" / "main").write_text("b" * 40)
    assert locate("m", "owner/model", None).identity["revision"] == "b" * 40
    (snapshots / ("b" * 40) / "model.safetensors").unlink()
    assert f"--revision {'b' * 40}`" in str(locate("m", "owner/model", "b" * 40).missing)
