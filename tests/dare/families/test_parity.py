"""Every recorded tensor of the released code is reproduced, for every family, and facts come from the config."""

from __future__ import annotations

import json

import pytest
import torch
from dare_bench.dare.conformance.families import compare
from dare_bench.dare.families.loading import load

FAMILIES = ("llada", "llada_moe", "dream", "sdar", "sdar_moe", "llada2_moe")
LIMIT = 1e-4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_recorded_tensor(reference, family, dtype):
    outcomes = compare(reference / "families" / family, tolerance=LIMIT, dtype=dtype, device="cpu")
    assert [item for item in outcomes if not item.passed] == []
    assert {item.subject for item in outcomes} == {family}
    assert len(outcomes) >= 4
    assert max(item.max_diff for item in outcomes) < 1e-5  # the limit leaves room for other machines


@pytest.mark.parametrize("family", FAMILIES)
def test_family_is_detected_and_special_ids_come_from_the_config(reference, family):
    folder = reference / "families" / family
    lm, config = load(folder, device="cpu"), json.loads((folder / "config.json").read_text())
    assert lm.family.name == family
    assert lm.mask_token_id == config.get("mask_token_id", lm.family.mask_token_id)
    assert lm.eos_token_id == config.get("eos_token_id", lm.family.eos_token_id)
    assert lm.pad_token_id == config.get("pad_token_id", lm.eos_token_id)
    assert lm.block_length == config.get("block_size", lm.family.default_block_length)
    assert lm.is_block_causal == (family in ("sdar", "sdar_moe", "llada2_moe"))
    assert lm.family.shift == (1 if family == "dream" else 0)
    assert (lm.vocab_size, lm.dtype) == (320, torch.float32)
    assert sum(p.numel() for p in lm.model.parameters()) == lm.family.parameters(config)
