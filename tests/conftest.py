"""Shared settings of all tests: one thread, no hub."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Read when huggingface_hub is first imported: a test that reached for the hub would hang or depend on it.
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture
def in_tmp(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Run the test with an empty folder as working directory."""
    monkeypatch.chdir(str(tmp_path))
    yield tmp_path


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the toy experiments unless -m asks for them: they take minutes, and other markers still combine."""
    if "toy" in str(config.option.markexpr):
        return
    toys = [item for item in items if item.get_closest_marker("toy")]
    if toys:
        config.hook.pytest_deselected(items=toys)
        items[:] = [item for item in items if not item.get_closest_marker("toy")]
