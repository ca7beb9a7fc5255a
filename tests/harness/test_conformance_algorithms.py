"""`dare-bench conformance algorithms`: its table, its exit code, and the rewards that it compares."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "dare" / "algorithms" / "data"
REWARDS = ROOT / "suites" / "data" / "published_rewards.json"


@pytest.fixture
def recorded(in_tmp: Path) -> Path:
    folder = in_tmp / "recorded"
    folder.mkdir()
    shutil.copy(KEPT / "llada_sft.json", folder)
    shutil.copy(REWARDS, folder / "rewards.json")
    return folder


def test_equal_values_pass(invoke: Callable[..., Any], recorded: Path) -> None:
    answer = invoke("conformance", "algorithms", str(recorded))
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["llada_sft", "rewards"]
    assert all(line.split()[-1] == "pass" for line in lines[2:4])
    assert "of 2 files compared, 0 failed, 0 skipped" in lines[-1]
    shown = invoke("conformance", "algorithms", str(recorded), "--cases").out
    assert "loss sequence" in shown and "corrected: " in shown


def test_a_changed_value_fails_and_is_shown(invoke: Callable[..., Any], recorded: Path) -> None:
    path = recorded / "llada_sft.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["expected_loss"]["token_mean_d1"] += 1e-4
    path.write_text(json.dumps(data), encoding="utf-8")
    (recorded / "unheard_of.json").write_text('{"loss": 1.0}', encoding="utf-8")
    answer = invoke("conformance", "algorithms", str(recorded))
    assert answer.code == 1
    said = " ".join(answer.out.split())
    assert "loss token" in said and "no module compares a file of this name" in said
    assert "2 failed" in said


def test_a_damaged_file_is_a_user_error(invoke: Callable[..., Any], recorded: Path) -> None:
    (recorded / "llada_sft.json").write_text("{", encoding="utf-8")
    answer = invoke("conformance", "algorithms", str(recorded))
    assert (answer.code, answer.out) == (2, "")
    assert "llada_sft.json: not readable as json" in answer.err and "Traceback" not in answer.err
