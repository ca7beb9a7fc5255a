"""The shipped tiny models are what their cards say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.families import loading
from dare_bench.dare.families.registry import models
from dare_bench.suites.benchmarks import registry as benchmarks

NAMES = ("tiny-sdar", "tiny-llada")
FAST = DecoderConfig(selector="threshold", selector_options={"threshold": 0.9})


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def folder(name: str) -> Path:
    return loading.resolve(name)


def card_scores(name: str) -> dict[tuple[str, str], tuple[float, float, float]]:
    text = (folder(name) / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (\w+) \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) \|$", text, re.M)
    return {(bench, decoder): (float(s), float(v), float(n)) for bench, decoder, s, v, n in rows}


@pytest.mark.parametrize("name", NAMES)
def test_artefacts(name: str) -> None:
    found = {path.name for path in folder(name).iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "training.json", "README.md"} <= found
    assert sum(path.stat().st_size for path in folder(name).iterdir()) < 8_000_000
    lm = loading.load(name, device="cpu")
    assert lm.dtype == torch.bfloat16
    assert lm.dims.parameters == sum(p.numel() for p in lm.model.parameters()) < 1_000_000
    registered = models()[name].config
    assert {key: lm.config[key] for key in registered} == dict(registered), "the registry's sizes are the shipped ones"


@pytest.mark.parametrize("name", NAMES)
def test_training_log_names_its_recipe(name: str) -> None:
    log = json.loads((folder(name) / "training.json").read_text(encoding="utf-8"))
    for stage in log["stages"]:
        assert stage["command"].startswith("dare-bench run suites/tiny")
        steps = [point["step"] for point in stage["curve"]]
        assert steps == sorted(steps)
        assert steps[-1] == stage["config"]["train"]["steps"]
        assert stage["curve"][-1]["nll_masked"] < stage["curve"][0]["nll_masked"]


@pytest.mark.parametrize("name", NAMES)
def test_any_text_can_be_encoded(name: str) -> None:
    chat = loading.load(name, device="cpu").chat
    for text in ("Ünïcode ∑ 漢字 🙂", "a\n\tb  c", "12345", "\\frac{1}{2}"):
        assert chat.decode(chat.encode_text(text)) == text
    assert len(chat.encode_text("12345")) == 5, "digits are tokens of their own"


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_card(name: str) -> None:
    """First 200 questions with the fast decoder: within sampling error of the card, and in the intended range."""
    lm = loading.load(name, dtype="float32", device="cpu")
    bench = benchmarks.get("mini_gsm")
    rows = bench.rows("test", limit=200)
    gen_length = bench.protocol().gen_length
    decoder = DecoderConfig(**{**vars(FAST), "gen_length": gen_length})
    found = generate(lm, [lm.encode_chat(bench.messages(row)) for row in rows], decoder, [0] * len(rows))
    verdicts = [bench.scorer().score(lm.decode(g.text_ids), row) for g, row in zip(found, rows, strict=True)]
    strict = 100 * sum(verdict.metrics["strict"] for verdict in verdicts) / len(rows)
    value = 100 * sum(verdict.metrics["value"] for verdict in verdicts) / len(rows)
    card_strict, card_value, card_nfe = card_scores(name)["mini_gsm", "fast"]
    assert abs(strict - card_strict) < 9  # 200 of 500 questions: 2 standard errors are about 7 points
    assert abs(value - card_value) < 9
    assert abs(sum(g.cost.nfe for g in found) / len(rows) - card_nfe) < 0.5
    assert 30 <= card_strict <= 55 < card_value, "room for post-training, for a reason a reader understands"


@pytest.mark.parametrize("name", NAMES)
def test_training_data_can_still_be_drawn(name: str) -> None:
    """The log's checksums are those of what the corpus script draws today."""
    corpus = benchmarks.get("mini_corpus")
    log = json.loads((folder(name) / "training.json").read_text(encoding="utf-8"))
    for stage in log["stages"]:
        assert stage["config"]["data_identity"]
        for identity in stage["config"]["data_identity"]:
            logged = identity["rows"]
            assert corpus.data_id(logged["split"])["sha256"] == logged["sha256"]
