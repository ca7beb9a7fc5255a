"""Published decoders run on the families they were published for."""

from __future__ import annotations

import dataclasses

import pytest
from dare_bench.dare.decoding import presets
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.families.registry import UnknownName


@pytest.mark.parametrize("name", sorted(presets.presets()))
def test_a_preset_decodes(tiny, name):
    entry = presets.get(name)
    assert entry.summary.endswith(".") and entry.source and entry.families
    known = {field.name for field in dataclasses.fields(DecoderConfig)} - {"name"}
    assert set(entry.fields) <= known
    lm = tiny(entry.families[0])
    decoder = DecoderConfig(**{**entry.fields, "gen_length": 8, "early_stop": False})
    if lm.is_block_causal:
        decoder = dataclasses.replace(decoder, block_length=4, steps_per_block=None)
    (found,) = generate(lm, [[3, 1, 4, 1]], decoder, [0])
    assert len(found.token_ids) == 8
    assert lm.mask_token_id not in found.token_ids
    assert min(found.step_map) >= 0
    assert found.cost.nfe <= 8 + 3 * (decoder.editor != "none") * 16


def test_whole_canvas_presets_shrink_with_the_canvas(tiny):
    decoder = DecoderConfig(**{**presets.get("dream_official").fields, "gen_length": 6})
    (found,) = generate(tiny("dream"), [[3, 1, 4]], decoder, [0])
    assert found.cost.nfe == 6 and found.block_starts == [0]


def test_an_unknown_preset_is_named():
    with pytest.raises(UnknownName, match="fastdllm_dual"):
        presets.get("fastdllm_dul")
