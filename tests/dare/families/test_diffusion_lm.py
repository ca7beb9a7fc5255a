"""The interface of a model: rows to return, masks by name, padding."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.decoding.caches import PositionCache
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.kernels.masks import block_causal_mask
from hypothesis import given, settings
from hypothesis import strategies as st

FAMILIES = ("llada", "sdar")


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def ids():
    return torch.arange(20).reshape(2, 10) * 3


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_pick_rows_of_the_full_result(tiny, family, ids):
    lm = tiny(family)
    full = lm.logits(ids)
    assert full.shape == (2, 10, 64)
    index = torch.tensor([[7, 0, 7], [9, 3, 1]])
    assert torch.allclose(lm.logits(ids, positions=index), full[torch.arange(2)[:, None], index], atol=1e-12)
    chosen = torch.zeros(2, 10, dtype=torch.bool)
    chosen[0, [8, 2]] = chosen[1, 5] = True
    picked = lm.logits(ids, positions=chosen)
    assert picked.shape == (3, 64)
    assert torch.allclose(picked, torch.stack([full[0, 2], full[0, 8], full[1, 5]]), atol=1e-12)
    assert lm.logits(ids, positions=torch.zeros_like(chosen)).shape == (0, 64)
    hidden = lm.hidden(ids, positions=index)
    assert hidden.shape == (2, 3, 32)
    assert torch.allclose(hidden @ lm.head_weight.T, lm.logits(ids, positions=index), atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_mask_argument(tiny, family, ids):
    lm = tiny(family)
    named = {name: lm.logits(ids, mask=name) for name in ("auto", "full", "block_causal")}
    blocks = block_causal_mask(torch.arange(10).expand(2, -1), lm.block_length)
    assert torch.allclose(lm.logits(ids, mask=blocks), named["block_causal"], atol=1e-12)
    assert torch.equal(named["auto"], named["block_causal" if lm.is_block_causal else "full"])
    assert not torch.allclose(named["full"], named["block_causal"], atol=0.1)
    whole = lm.logits(ids, mask="block_causal", block_length=10)
    assert torch.allclose(whole, named["full"], atol=1e-12)


def test_bad_masks(tiny, ids):
    with pytest.raises(
        ValueError, match=r"unknown mask 'window'; allowed: 'auto', 'full', 'block_causal', 'causal' or a bool"
    ):
        tiny("llada").logits(ids, mask="window")
    cache = PositionCache(2, 10, tiny("sdar").model.config)
    with pytest.raises(ValueError, match=r"with a cache give position_ids"):
        tiny("sdar").logits(ids, cache=cache)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(
    st.sampled_from(FAMILIES), st.lists(st.integers(1, 12), min_size=2, max_size=4), st.sampled_from(["left", "right"])
)
def test_rows_of_a_padded_batch_equal_single_rows(tiny, family, lengths, side):
    lm = tiny(family)
    width = max(lengths)
    rows = [torch.arange(length) * 5 % 61 for length in lengths]
    ids = torch.full((len(rows), width), lm.pad_token_id)
    real = torch.zeros(len(rows), width, dtype=torch.long)
    for row, tokens in enumerate(rows):
        place = slice(width - len(tokens), width) if side == "left" else slice(0, len(tokens))
        ids[row, place], real[row, place] = tokens, 1
    logits = lm.logits(ids, attention_mask=real)
    assert logits.isfinite().all()
    for row, tokens in enumerate(rows):
        assert torch.allclose(logits[row][real[row].bool()], lm.logits(tokens[None])[0], atol=1e-9)


def test_sizes_and_modes(tiny, tiny_config):
    lm = tiny("sdar")
    assert (lm.vocab_size, lm.dtype, lm.device.type, lm.block_length) == (64, torch.float64, "cpu", 4)
    assert (lm.mask_token_id, lm.eos_token_id, lm.pad_token_id, lm.stop_token_ids) == (63, 62, 62, {62})
    assert lm.train().model.training and not lm.eval().model.training
    plain = DiffusionLM(lm.family, tiny_config("sdar", mask_token_id=None, eos_token_id=None), lm.model)
    assert (plain.mask_token_id, plain.eos_token_id, plain.pad_token_id) == (151669, 151643, 151643)
    other = DiffusionLM(lm.family, tiny_config("sdar", pad_token_id=0), lm.model)
    assert other.pad_token_id == 0
