"""Fingerprints change with what determines a result, and with nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.training.config import LoraConfig, TrainConfig
from dare_bench.harness import fingerprint as prints
from dare_bench.harness.resolved import Model
from dare_bench.harness.weights import folder_digest, locate

TRAIN: dict[str, Any] = {
    "base": {"family": "sdar", "weights": {"sha256": "a"}},
    "algorithm": "sft",
    "algorithm_version": 1,
    "settings": {"weight": "inv_t"},
    "train": TrainConfig(steps=10),
    "rollout": None,
    "data": [{"rows": {"id": "mini_gsm", "sha256": "b"}}],
    "phases": [],
    "seed": 0,
}
GENERATE: dict[str, Any] = {
    "checkpoint": "f" * 64,
    "task": {"rows": {"id": "mini_gsm"}, "protocol": {"id": "std-1"}},
    "decoder": DecoderConfig(gen_length=64),
    "dtype": "float32",
    "seed": 0,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base", {"family": "sdar", "weights": {"sha256": "c"}}),
        ("algorithm", "d1"),
        ("algorithm_version", 2),
        ("settings", {"weight": "none"}),
        ("train", TrainConfig(steps=11)),
        ("train", TrainConfig(steps=10, peft=LoraConfig())),
        ("train", TrainConfig(steps=10, select="step:5")),
        ("rollout", DecoderConfig(gen_length=8)),
        ("data", [{"rows": {"id": "mini_gsm", "sha256": "c"}}]),
        ("phases", [[1.0, {"train": 1.0}]]),
        ("seed", 1),
        ("engine", "sglang"),
    ],
)
def test_every_determinant_of_training_counts(field: str, value: Any) -> None:
    assert prints.train_fingerprint(**TRAIN | {field: value}) != prints.train_fingerprint(**TRAIN)


def test_how_often_a_state_is_written_does_not_count() -> None:
    changed = dataclasses.replace(TRAIN["train"], checkpoint_every=5)
    assert prints.train_fingerprint(**TRAIN | {"train": changed}) == prints.train_fingerprint(**TRAIN)


def test_what_is_younger_than_stored_fingerprints_appears_only_when_it_is_used() -> None:
    """Digests of these settings before adapters on experts, and frozen weights in bfloat16, were possible."""
    plain = prints.train_values(TrainConfig(peft=LoraConfig()))
    assert plain["peft"] == {"r": 32, "alpha": 64.0, "dropout": 0.0} and "base_dtype" not in plain
    assert prints.train_values(TrainConfig(peft=LoraConfig(experts=True)))["peft"]["experts"] is True
    assert "base_dtype" not in prints.train_values(TrainConfig(dtype="bfloat16"))
    assert prints.train_values(TrainConfig(dtype="bfloat16", peft=LoraConfig()))["base_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("checkpoint", "e" * 64),
        ("checkpoint", {"family": "sdar", "weights": {"sha256": "a"}}),
        ("task", {"rows": {"id": "mini_choice"}, "protocol": {"id": "std-1"}}),
        ("decoder", DecoderConfig(gen_length=32)),
        ("decoder", DecoderConfig(gen_length=64, selector="threshold", selector_options={"threshold": 0.9})),
        ("decoder", DecoderConfig(gen_length=64, cache="none")),
        ("dtype", "bfloat16"),
    ],
)
def test_every_determinant_of_generation_counts(field: str, value: Any) -> None:
    assert prints.generate_fingerprint(**GENERATE | {field: value}) != prints.generate_fingerprint(**GENERATE)


def test_the_decoder_label_does_not_count() -> None:
    renamed = DecoderConfig(name="other", gen_length=64)
    assert prints.generate_fingerprint(**GENERATE | {"decoder": renamed}) == prints.generate_fingerprint(**GENERATE)


def test_greedy_generation_has_no_seed() -> None:
    key, seed = prints.generate_fingerprint(**GENERATE | {"seed": 7})
    assert seed is None
    assert key == prints.generate_fingerprint(**GENERATE)[0]


@pytest.mark.parametrize("decoder", [DecoderConfig(temperature=1.0), DecoderConfig(selector="random")])
def test_drawn_generation_has_a_seed(decoder: DecoderConfig) -> None:
    key, seed = prints.generate_fingerprint(**GENERATE | {"decoder": decoder, "seed": 7})
    assert seed == 7
    assert key != prints.generate_fingerprint(**GENERATE | {"decoder": decoder, "seed": 8})[0]


def test_scoring_depends_on_evaluation_scorer_and_version() -> None:
    keys = {prints.score_fingerprint(*parts) for parts in (("a", "s", 1), ("b", "s", 1), ("a", "t", 1), ("a", "s", 2))}
    assert len(keys) == 4


def test_identity_of_a_base_is_its_weights_not_its_name() -> None:
    def identity(name: str, source: str) -> dict[str, Any]:
        return prints.checkpoint_identity(Model(name, "sdar", source, None, {}), {"sha256": "a"})

    assert identity("a", "./x") == identity("b", "./y")


def _checkpoint(folder: Path, content: bytes) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(content)
    return folder


def test_digest_follows_content_not_place(tmp_path: Path) -> None:
    first, same = _checkpoint(tmp_path / "a", b"1"), _checkpoint(tmp_path / "b", b"1")
    other = _checkpoint(tmp_path / "c", b"2")
    assert folder_digest(first) == folder_digest(same) != folder_digest(other)
    (same / "config.json").write_text('{"x": 1}')
    assert folder_digest(first) != folder_digest(same)


def test_missing_weights_say_how_to_get_them(tmp_path: Path) -> None:
    hub = locate("m", "owner/model", "abc")
    assert hub.folder is None and "hf download owner/model --revision abc" in str(hub.missing)
    assert hub.identity == {"hub": "owner/model", "revision": "abc"}
    assert "no config.json" in str(locate("m", str(tmp_path), None).missing)
    assert "no folder" in str(locate("m", str(tmp_path / "x"), None).missing)
