"""Tiny random checkpoints: official layout, far from flat, equal wherever and how often they are made."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.dispatch import generate
from dare_bench.dare.families import loading, random_entries
from dare_bench.dare.families.registry import families, get
from dare_bench.dare.training import random_checkpoint
from dare_bench.dare.training.tokenizer import MASK, SPECIALS
from safetensors import safe_open

NAMES = list(random_entries.CONFIGS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All checkpoints."""
    parent = tmp_path_factory.mktemp("random")
    for name in NAMES:
        random_checkpoint.ensure(f"random:{name}", parent)
    return parent


def _folder(made: Path, name: str) -> Path:
    return made / random_entries.folder_name(f"random:{name}")


def test_every_family_has_one() -> None:
    assert set(NAMES) == set(families()) == set(SPECIALS)
    assert {name for name, family in families().items() if family.mask_token_id is not None} == set(MASK)
    assert {get(f"random-{name.replace('_', '-')}").family for name in NAMES} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_ordinary_loader_reads_official_names(name: str, made: Path) -> None:
    folder = _folder(made, name)
    lm = loading.load(folder, device="cpu")
    assert lm.family.name == name and lm.block_length == (1 if name == "autoregressive" else random_entries.BLOCK)
    with safe_open(folder / "model.safetensors", "pt") as stored:
        assert set(stored.keys()) == {official for official, _ in lm.family.tensors(lm.config)}
    assert lm.dims.vocab == len(lm.tokenizer) == random_entries.VOCAB


@pytest.mark.parametrize("name", NAMES)
def test_tokenizer_and_chat_text_are_the_familys(name: str, made: Path) -> None:
    lm = loading.load(_folder(made, name), device="cpu")
    assert lm.chat is not None and lm.chat.template == lm.family.chat_template
    known = lm.tokenizer.get_vocab()
    if name in MASK:
        assert lm.mask_token_id == known[MASK[name]]
    assert {known[token] for token in lm.family.stop_tokens if token in known} <= lm.stop_token_ids
    assert lm.chat.reply_end_id == known[lm.family.reply_end]
    ids = lm.encode_chat([{"role": "user", "content": "Wie groß ist 2+2?"}])
    assert lm.tokenizer.decode(ids) == lm.render_chat([{"role": "user", "content": "Wie groß ist 2+2?"}])
    assert set(lm.tokenizer.added_tokens_decoder) & set(ids)


@pytest.mark.parametrize("name", NAMES)
def test_decodes_and_is_far_from_flat(name: str, made: Path) -> None:
    lm = loading.load(_folder(made, name), device="cpu")
    decoder = DecoderConfig(gen_length=16, **lm.family.default_decoder)
    prompt = lm.encode_chat([{"role": "user", "content": "What is 2+2?"}])
    found = generate(lm, [prompt], decoder, [0])[0]
    assert len(set(found.token_ids)) > 1
    assert torch.tensor(found.confidence).mean() > 10 / random_entries.VOCAB


def test_equal_wherever_it_is_made(made: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    again = random_checkpoint.ensure("random:llada2_moe", tmp_path)
    first = _folder(made, "llada2_moe")
    assert again.name == first.name
    for part in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (again / part).read_bytes() == (first / part).read_bytes()


def test_what_is_there_is_left_alone(made: Path) -> None:
    weights = _folder(made, "sdar") / "model.safetensors"
    before = weights.stat().st_mtime_ns
    random_checkpoint.ensure("random:sdar", made)
    assert weights.stat().st_mtime_ns == before


def test_two_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=random_checkpoint.ensure, args=("random:sdar", tmp_path)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    folder = tmp_path / random_entries.folder_name("random:sdar")
    assert list(tmp_path.iterdir()) == [folder]
    assert loading.load(folder, device="cpu").family.name == "sdar"


def test_identity_follows_version_config_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    identity, folder = random_entries.identity("random:sdar"), random_entries.folder_name("random:sdar")
    assert identity["random"] == "sdar" and identity["seed"] == random_entries.SEED
    for name, value in (("VERSION", 99), ("SEED", 99), ("CONFIGS", {"sdar": {"model_type": "sdar"}})):
        with monkeypatch.context() as patch:
            patch.setattr(random_entries, name, value)
            assert random_entries.identity("random:sdar") != identity
            assert random_entries.folder_name("random:sdar") != folder
