"""The interface of a model, for every family: rows to return, masks by name, padding, the doubled layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dare_bench.dare.decoding.caches import PositionCache
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.kernels.masks import block_causal_mask
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

FAMILIES = ("llada", "llada_moe", "dream", "sdar", "sdar_moe", "llada2_moe")
BLOCKS = ("sdar", "sdar_moe", "llada2_moe")


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def ids():
    return torch.arange(20).reshape(2, 10) * 3


def float64_limit(family: str) -> float:
    """What a float64 model may differ by: the router of llada2_moe computes in float32 whatever the weights are."""
    return 1e-6 if family == "llada2_moe" else 1e-9


def near(found: Tensor, wanted: Tensor, limit: float = 1e-9) -> bool:
    """Whether two tensors of one shape differ by no more than `limit` anywhere."""
    assert found.shape == wanted.shape
    return bool(((found - wanted).abs() <= limit).all())


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_pick_rows_of_the_full_result(tiny, family, ids):
    lm = tiny(family)
    full = lm.logits(ids)
    assert full.shape == (2, 10, 64)
    index = torch.tensor([[7, 0, 7], [9, 3, 1]])
    assert near(lm.logits(ids, positions=index), full[torch.arange(2)[:, None], index])
    chosen = torch.zeros(2, 10, dtype=torch.bool)
    chosen[0, [8, 0, 2]] = chosen[1, 5] = True
    picked = lm.logits(ids, positions=chosen)
    assert picked.shape == (4, 64)
    assert near(picked, torch.stack([full[0, 0], full[0, 2], full[0, 8], full[1, 5]]))
    assert lm.logits(ids, positions=torch.zeros_like(chosen)).shape == (0, 64)
    hidden = lm.hidden(ids, positions=index)
    assert hidden.shape == (2, 3, 32)
    assert near(hidden @ lm.head_weight.T, lm.logits(ids, positions=index))


@pytest.mark.parametrize("family", FAMILIES)
def test_row_i_scores_token_i(tiny, family, ids):
    lm = tiny(family)
    raw, aligned = lm.logits(ids, aligned=False), lm.logits(ids)
    if family == "dream":
        assert torch.equal(aligned[:, 1:], raw[:, :-1]) and torch.equal(aligned[:, 0], raw[:, 0])
        assert not near(aligned, raw, 0.5)
    else:
        assert torch.equal(aligned, raw)
    index, chosen = torch.tensor([[7, 1], [9, 3]]), torch.zeros(2, 10, dtype=torch.bool)
    chosen[0, [1, 7]] = chosen[1, [3, 9]] = True
    assert near(lm.logits(ids, positions=index, aligned=False), raw[torch.arange(2)[:, None], index])
    assert near(lm.logits(ids, positions=chosen, aligned=False), raw[chosen])
    assert near(lm.logits(ids, positions=chosen), aligned[chosen])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_mask_argument(tiny, family, ids):
    lm = tiny(family)
    named = {name: lm.logits(ids, mask=name) for name in ("auto", "full", "block_causal", "causal")}
    blocks = block_causal_mask(torch.arange(10).expand(2, -1), lm.block_length)
    assert near(lm.logits(ids, mask=blocks), named["block_causal"])
    assert torch.equal(named["auto"], named["block_causal" if lm.is_block_causal else "full"])
    assert not near(named["full"], named["block_causal"], 0.1)
    assert near(lm.logits(ids, mask="block_causal", block_length=10), named["full"])
    assert near(lm.logits(ids, mask="block_causal", block_length=1), named["causal"])
    assert near(lm.logits(ids, mask=torch.ones(1, 1, 10, 10, dtype=torch.bool)), named["full"])


def test_bad_masks(tiny, ids):
    with pytest.raises(
        ValueError, match=r"unknown mask 'window'; allowed: 'auto', 'full', 'block_causal', 'causal' or a bool"
    ):
        tiny("llada").logits(ids, mask="window")
    cache = PositionCache(2, 10, tiny("sdar").model.config)
    with pytest.raises(ValueError, match=r"with a cache give position_ids"):
        tiny("sdar").logits(ids, cache=cache)


@st.composite
def batches(draw: Any) -> list[tuple[list[int], int, int]]:
    """Rows of one width: tokens, padding on their left, padding on their right."""
    width = draw(st.integers(2, 12))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, width))
        left = draw(st.sampled_from([0, width - length, (width - length) // 2]))
        rows.append((draw(st.lists(st.integers(0, 63), min_size=length, max_size=length)), left, width - length - left))
    return rows


@pytest.mark.parametrize("mask", ["auto", "full", "block_causal"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None, max_examples=15, derandomize=True)
@given(rows=batches())
def test_rows_of_a_padded_batch_equal_single_rows(tiny, family, dtype, mask, rows):
    lm = tiny(family, dtype=dtype)
    limit = float64_limit(family) if dtype == torch.float64 else 1e-5
    pad = lm.pad_token_id
    ids = torch.tensor([[pad] * left + tokens + [pad] * right for tokens, left, right in rows])
    real = torch.tensor([[0] * left + [1] * len(tokens) + [0] * right for tokens, left, right in rows])
    raw, aligned = (lm.logits(ids, attention_mask=real, mask=mask, aligned=aligned) for aligned in (False, True))
    assert raw.isfinite().all() and aligned.isfinite().all()
    for row, (tokens, left, right) in enumerate(rows):
        place = slice(left, ids.shape[1] - right)
        alone = {"ids": torch.tensor([tokens]), "mask": mask}
        assert near(raw[row, place], lm.logits(**alone, aligned=False)[0], limit)
        # Aligned, the first real token of a left-padded row would be scored by padding.
        first = lm.family.shift
        assert near(aligned[row, place][first:], lm.logits(**alone)[0, first:], limit)


@pytest.mark.parametrize("family", BLOCKS)
@settings(deadline=None, max_examples=15, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 11), min_size=1, max_size=3),
    first=st.integers(0, 2),
    seed=st.integers(0, 999),
)
def test_doubled_equals_a_recomputation_of_every_block(tiny, family, lengths, first, seed):
    lm, size = tiny(family), 4
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    clean, noisy = (torch.randint(0, 64, shape, generator=generator) for _ in range(2))
    real = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    begin = min(first * size, (shape[1] - 1) // size * size)
    window = torch.arange(begin, shape[1]).expand(shape[0], -1)
    options = {
        "noisy_positions": window,
        "noisy_real": real[:, begin:].long(),
        "clean_real": real.long(),
    }
    states = lm.doubled(noisy[:, begin:], clean, **options)
    assert states.shape == (shape[0], shape[1] - begin, 32)
    chosen = real[:, begin:] & (torch.rand(window.shape, generator=generator) < 0.5)
    assert near(lm.doubled(noisy[:, begin:], clean, positions=chosen, **options), states[chosen])
    for row, length in enumerate(lengths):
        for start in range(begin, length, size):
            end = min(start + size, length)
            alone = torch.cat([clean[row, :start], noisy[row, start:end]])[None]
            found = states[row, start - begin : end - begin]
            assert near(found, lm.hidden(alone)[0, start:], float64_limit(family))
    if all(length == shape[1] for length in lengths):
        assert near(lm.doubled(noisy, clean)[:, begin:], states)


def test_doubled_is_for_block_families(tiny, ids):
    for family in ("llada", "llada_moe", "dream"):
        with pytest.raises(ValueError, match=f"for block-causal families, '{family}' has full attention"):
            tiny(family).doubled(ids, ids)


def test_sizes_and_modes(tiny, tiny_config):
    lm = tiny("sdar")
    assert (lm.vocab_size, lm.dtype, lm.device.type, lm.block_length) == (64, torch.float64, "cpu", 4)
    assert (lm.mask_token_id, lm.eos_token_id, lm.pad_token_id, lm.stop_token_ids) == (63, 62, 62, {62})
    assert lm.train().model.training and not lm.eval().model.training
    plain = DiffusionLM(lm.family, tiny_config("sdar", mask_token_id=None, eos_token_id=None), lm.model)
    assert (plain.mask_token_id, plain.eos_token_id, plain.pad_token_id) == (151669, 151643, 151643)
    other = DiffusionLM(lm.family, tiny_config("sdar", pad_token_id=0), lm.model)
    assert other.pad_token_id == 0
