"""Making and packaging the shipped models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from dare_bench.dare.families import loading
from dare_bench.dare.families.registry import models
from dare_bench.harness.jobs import tiny

SUITES = Path(__file__).parents[2] / "suites"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tiny")
    done = CliRunner().invoke(tiny.main, ["init", "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0
    return out


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_init_writes_what_the_shipped_model_started_from(fresh: Path, family: str) -> None:
    """Same sizes, same tokenizer, byte for byte: the recipe begins where the shipped weights began."""
    lm = loading.load(fresh / family, device="cpu")
    shipped = loading.resolve(f"tiny-{family}")
    config = models()[f"tiny-{family}"].config
    assert {key: lm.config[key] for key in config} == dict(config)
    ours = json.loads((fresh / family / "tokenizer.json").read_text(encoding="utf-8"))
    theirs = json.loads((shipped / "tokenizer.json").read_text(encoding="utf-8"))
    assert ours["model"]["vocab"] == theirs["model"]["vocab"]
    assert ours["added_tokens"] == theirs["added_tokens"]
    messages = [{"role": "user", "content": "How many?"}]
    assert lm.encode_chat(messages) == loading.load(shipped, device="cpu").encode_chat(messages)


def test_init_is_reproducible(fresh: Path, tmp_path: Path) -> None:
    CliRunner().invoke(tiny.main, ["init", "--out", str(tmp_path)], catch_exceptions=False)
    for family in tiny.FAMILIES:
        again, first = (folder / family / "model.safetensors" for folder in (tmp_path, fresh))
        assert again.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("command", ["stage", "package"])
def test_nothing_is_packaged_before_it_is_trained(tmp_path: Path, command: str) -> None:
    options = ["--db", f"sqlite:///{tmp_path}/x.db", "--runs", str(tmp_path), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(tiny.main, [command, *options])
    assert done.exit_code != 0
    assert not (tmp_path / "out").exists()


def test_stages_name_suites_and_labels_that_exist() -> None:
    for stages in tiny.STAGES.values():
        for suite, label in stages:
            manifest = yaml.safe_load((SUITES / f"{suite}.yaml").read_text(encoding="utf-8"))
            assert manifest["suite"] == suite
            assert label in {item["as"] for item in manifest["algorithms"]}
