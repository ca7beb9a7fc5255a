"""Logits equal those of the released modelling code, and would not if a detail were wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from dare_bench.dare.decoding.caches import PositionCache
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.loading import load
from dare_bench.kernels.masks import block_causal_mask, doubled_mask
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

LIMIT = 1e-4
FAMILIES = ("llada", "sdar")


class Case:
    """One family's model with its recorded inputs and outputs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lm: DiffusionLM = load(folder, device="cpu")
        self.given = load_file(folder / "inputs.safetensors")
        self.wanted = load_file(folder / "expected.safetensors")
        self.ids = self.given["input_ids"]

    def error(self, logits: Tensor, name: str, real: Tensor | None = None) -> float:
        """Largest difference from an expected tensor, at real positions."""
        assert logits.shape == self.wanted[name].shape
        difference = (logits - self.wanted[name]).abs()
        return float((difference if real is None else difference[real.bool()]).max())


@pytest.fixture(scope="module")
def case(reference) -> Callable[[str], Case]:
    cases = {family: Case(reference / "families" / family) for family in FAMILIES}
    return cases.__getitem__


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_family_is_detected_and_special_ids_come_from_the_config(case, family):
    lm, config = case(family).lm, json.loads((case(family).folder / "config.json").read_text())
    assert lm.family.name == family
    assert (lm.mask_token_id, lm.eos_token_id) == (config["mask_token_id"], config["eos_token_id"])
    assert lm.is_block_causal == (family == "sdar")
    assert (lm.vocab_size, lm.dtype) == (320, torch.float32)
    assert sum(p.numel() for p in lm.model.parameters()) == lm.family.parameters(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_full_attention(case, family):
    assert case(family).error(case(family).lm.logits(case(family).ids, mask="full"), "logits_full") <= LIMIT


def test_llada_auto_mask_is_full(case):
    llada = case("llada")
    assert llada.error(llada.lm.logits(llada.ids), "logits_full") <= LIMIT


@pytest.mark.parametrize("side", ["left", "right"])
def test_llada_padding(case, side):
    llada = case("llada")
    real = llada.given[f"attention_mask_{side}pad"]
    ids = llada.given[f"input_ids_{side}pad"]
    assert llada.error(llada.lm.logits(ids, attention_mask=real), f"logits_{side}pad", real) <= LIMIT


@pytest.mark.parametrize(("name", "fed"), [("prefix", (8, 16)), ("dual", (8, 12))])
def test_llada_window_over_stored_positions(case, name, fed):
    llada = case("llada")
    cache, rows = PositionCache(2, 16, llada.lm.model.config), torch.arange(2)
    everything = torch.arange(16).expand(2, -1)
    full = torch.ones(1, 1, 16, 16, dtype=torch.bool)
    cache.aim(rows, everything, 16)
    llada.lm.logits(llada.ids, mask=full, position_ids=everything, cache=cache)
    window = everything[:, fed[0] : fed[1]]
    cache.aim(rows, window, 16)
    ids = llada.given["input_ids_step1"][:, fed[0] : fed[1]]
    logits = llada.lm.logits(ids, mask=full[:, :, : window.shape[1]], position_ids=window, cache=cache)
    assert llada.error(logits, f"logits_{name}_cache") <= LIMIT


@pytest.mark.parametrize("mask", ["auto", "block_causal"])
def test_sdar_block_causal(case, mask):
    sdar = case("sdar")
    assert sdar.error(sdar.lm.logits(sdar.ids, mask=mask), "logits_block_causal") <= LIMIT
    assert torch.equal(block_causal_mask(sdar.given["position_ids"], 4), sdar.given["mask_block_causal"])


def test_sdar_left_padding_counts_blocks_from_the_first_real_token(case):
    sdar = case("sdar")
    real = sdar.given["attention_mask_leftpad"]
    logits = sdar.lm.logits(sdar.given["input_ids_leftpad"], attention_mask=real)
    assert sdar.error(logits, "logits_leftpad_block_causal", real) <= LIMIT


def test_sdar_right_padding_changes_no_real_position(case):
    sdar = case("sdar")
    real = torch.ones_like(sdar.ids)
    real[1, 11:] = 0
    ids = sdar.ids.masked_fill(real == 0, sdar.lm.pad_token_id)
    logits = sdar.lm.logits(ids, attention_mask=real)
    assert float((logits[1, :11] - sdar.lm.logits(sdar.ids[1:, :11])[0]).abs().max()) <= LIMIT


@pytest.mark.parametrize(("name", "start"), [("logits_cache_block", 8), ("logits_cache_block2", 12)])
def test_sdar_block_over_stored_clean_blocks(case, name, start):
    sdar = case("sdar")
    cache, rows = PositionCache(2, 16, sdar.lm.model.config), torch.arange(2)
    before = torch.arange(start).expand(2, -1)
    cache.aim(rows, before, start)
    sdar.lm.logits(
        sdar.given["clean_ids"][:, :start], mask=block_causal_mask(before, 4), position_ids=before, cache=cache
    )
    block = torch.arange(start, start + 4).expand(2, -1)
    cache.aim(rows, block, start + 4)
    mask = torch.ones(1, 1, 4, start + 4, dtype=torch.bool)
    for _ in range(2):  # a second denoising step overwrites what the first has stored
        logits = sdar.lm.logits(sdar.ids[:, start : start + 4], mask=mask, position_ids=block, cache=cache)
    assert sdar.error(logits, name) <= LIMIT
    assert cache.get_seq_length() == start + 4


def test_sdar_doubled_training_input(case):
    sdar = case("sdar")
    positions = torch.arange(16).expand(2, -1)
    mask = doubled_mask(positions, positions, 4)
    assert torch.equal(mask[:1], sdar.given["train_mask_doubled"])
    ids = torch.cat([sdar.given["train_noisy_ids"], sdar.given["clean_ids"]], 1)
    logits = sdar.lm.logits(ids, mask=mask, position_ids=torch.cat([positions, positions], 1))
    assert sdar.error(logits, "train_logits_doubled") <= LIMIT
    target, labels = sdar.given["train_target_mask"].bool(), sdar.given["train_labels"]
    entropy = nn.functional.cross_entropy(logits[:, :16][target], sdar.given["clean_ids"][target], reduction="none")
    token_loss = entropy / sdar.given["train_p_mask"][target]
    assert float((token_loss - sdar.wanted["train_token_loss"]).abs().max()) <= LIMIT
    assert float(token_loss.sum() / (labels != -100).sum()) == pytest.approx(
        float(sdar.wanted["train_loss"]), abs=LIMIT
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_of_the_clean_tokens(case, family):
    data = case(family)
    logps = data.lm.logits(data.ids).log_softmax(-1)
    found = logps.gather(-1, data.given["clean_ids"][..., None])[..., 0]
    assert data.error(found, "logprob_clean") <= LIMIT


# What a mistake costs: each of these must be seen by the parity tests above.


@pytest.mark.parametrize("family", FAMILIES)
def test_a_causal_mask_would_be_seen(case, family):
    causal = torch.ones(1, 1, 16, 16, dtype=torch.bool).tril()
    assert case(family).error(case(family).lm.logits(case(family).ids, mask=causal), "logits_full") > 0.5


def test_an_ignored_padding_mask_would_be_seen(case):
    llada = case("llada")
    real = llada.given["attention_mask_leftpad"]
    assert llada.error(llada.lm.logits(llada.given["input_ids_leftpad"]), "logits_leftpad", real) > 0.5


def test_full_attention_in_sdar_would_be_seen(case):
    assert case("sdar").error(case("sdar").lm.logits(case("sdar").ids, mask="full"), "logits_block_causal") > 0.5


@pytest.mark.parametrize(("family", "gate", "up"), [("llada", "ff_proj", "up_proj"), ("sdar", "gate_proj", "up_proj")])
def test_swapped_gate_and_up_would_be_seen(case, tmp_path, family, gate, up):
    data = case(family)
    shutil.copy(data.folder / "config.json", tmp_path / "config.json")
    swap = {f".{gate}.": f".{up}.", f".{up}.": f".{gate}."}
    weights = {}
    for name, tensor in load_file(data.folder / "model.safetensors").items():
        part = next((part for part in swap if part in name), None)
        weights[name.replace(part, swap[part]) if part else name] = tensor
    save_file(weights, tmp_path / "model.safetensors")
    assert data.error(load(tmp_path, device="cpu").logits(data.ids, mask="full"), "logits_full") > 0.5


def test_missing_qk_norm_would_be_seen(case):
    sdar = case("sdar")
    lm = load(sdar.folder, device="cpu")
    for layer in lm.model.model.layers:
        layer.self_attn.q_norm = layer.self_attn.k_norm = nn.Identity()
    assert sdar.error(lm.logits(sdar.ids, mask="full"), "logits_full") > 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_another_rope_base_would_be_seen(case, tmp_path, family):
    data = case(family)
    config = json.loads((data.folder / "config.json").read_text()) | {"rope_theta": 50.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(data.folder / "model.safetensors", tmp_path)
    assert data.error(load(tmp_path, device="cpu").logits(data.ids, mask="full"), "logits_full") > 0.5
