"""Block layouts: the window of noisy blocks gives the logits of the full doubled input, and nothing leaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from dare_bench.dare.algorithms.base import Batch
from dare_bench.dare.diffusion.block import concatenate, response_window, rows_from
from dare_bench.dare.training.replay import score
from dare_bench.kernels.masks import doubled_mask
from hypothesis import given, settings
from hypothesis import strategies as st

MASKS = json.loads((Path(__file__).parent / "data" / "block_diffusion_mask.json").read_text())
MASK, EOS = 63, 62


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def as_bool(rows: list[str]) -> torch.Tensor:
    return torch.tensor([[cell == "1" for cell in row] for row in rows])


@pytest.mark.parametrize("case", MASKS["cases"], ids=lambda case: f"S{case['seq_len']}-b{case['block_size']}")
def test_doubled_mask_equals_five_published_builders(case):
    positions = torch.arange(case["seq_len"])[None]
    mask = doubled_mask(positions, positions, case["block_size"])[0, 0]
    assert torch.equal(mask, as_bool(case["mask_rows"]))
    assert int(mask.sum()) == case["num_true"]


def test_doubled_mask_with_padding_equals_the_published_one_at_real_queries():
    case = MASKS["padding_case"]
    real = torch.tensor([case["attention_mask"]])
    positions = torch.arange(real.shape[1])[None]
    mask = doubled_mask(positions, positions, case["block_size"], noisy_real=real, clean_real=real)[0, 0]
    queries = torch.cat([real, real], 1)[0].bool()
    assert torch.equal(mask[queries], as_bool(case["mask_rows"])[queries])
    assert torch.equal(mask[~queries] & ~torch.eye(len(mask), dtype=torch.bool)[~queries], mask[~queries] & queries)


def make_batch(prompts: list[int], responses: list[int], block: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    prompt_lengths, lengths = torch.tensor(prompts), torch.tensor(prompts) + torch.tensor(responses)
    width = int(lengths.max())
    ids = torch.randint(0, 60, (len(prompts), width), generator=generator)
    inside = torch.arange(width) < lengths[:, None]
    ids[~inside] = EOS
    counted = inside & (torch.arange(width) >= prompt_lengths[:, None])
    names = [str(row) for row in range(len(prompts))]
    return Batch(ids, prompt_lengths, lengths, counted, names, torch.arange(len(prompts)), MASK, EOS, block)


def corrupt(batch: Batch, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    masked = (torch.rand(batch.ids.shape, generator=torch.Generator().manual_seed(seed)) < 0.5) & batch.counted
    return torch.where(masked, MASK, batch.ids), masked


def windowed_logits(lm, rows):
    clean = torch.arange(rows.context.shape[1]).expand(len(rows), -1)
    mask = doubled_mask(rows.position_ids, clean, rows.block_length, noisy_real=rows.real, clean_real=rows.context_real)
    ids = torch.cat([rows.ids, rows.context], 1)
    positions = torch.cat([rows.position_ids, clean], 1)
    return lm.logits(ids, mask=mask, position_ids=positions)[:, : rows.ids.shape[1]]


def full_logits(lm, clean, noisy, block):
    """Noisy half of one unpadded sequence in the doubled layout without a window."""
    positions = torch.arange(clean.shape[1])[None]
    mask = doubled_mask(positions, positions, block)
    both = torch.cat([noisy, clean], 1)
    return lm.logits(both, mask=mask, position_ids=torch.cat([positions, positions], 1))[:, : clean.shape[1]]


SHAPES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(SHAPES, st.integers(1, 6))
def test_the_window_gives_the_logits_of_the_full_layout(tiny, shapes, block):
    lm = tiny("sdar")
    batch = make_batch(*map(list, zip(*shapes, strict=True)), block)
    noisy, masked = corrupt(batch)
    weight = torch.rand(batch.ids.shape, generator=torch.Generator().manual_seed(2))
    rows = rows_from(batch, noisy, masked, weight, draw=3)
    windowed = windowed_logits(lm, rows)
    assert windowed.isfinite().all()
    for row, (prompt, response) in enumerate(shapes):
        start, length = prompt // block * block, prompt + response
        full = full_logits(lm, batch.ids[row : row + 1, :length], noisy[row : row + 1, :length], block)[0]
        assert torch.allclose(windowed[row, : length - start], full[start:], atol=1e-9)
        # the rows hold exactly the response's targets and weights, at their places
        real = rows.real[row]
        assert rows.position_ids[row][real].tolist() == list(range(start, length))
        assert torch.equal(rows.ids[row][real], noisy[row, start:length])
        assert torch.equal(rows.targets[row][real][:, 0], batch.ids[row, start:length])
        assert torch.equal(rows.mask[row][real], masked[row, start:length])
        assert torch.equal(rows.weight[row][real], weight[row, start:length])
        assert not rows.mask[row][~real].any() and not rows.weight[row][~real].any()
        assert int(rows.mask[row].sum()) == int(masked[row].sum())
        logps = score(lm, rows)[row, :, 0]
        wanted = full.log_softmax(-1).gather(1, batch.ids[row, :length, None])[start:, 0]
        picked = rows.mask[row]
        assert torch.allclose(logps[picked], wanted[picked[: length - start]], atol=1e-9)
        assert not logps[~picked].any()
    assert rows.draw.tolist() == [3] * len(shapes) and rows.owner.tolist() == list(range(len(shapes)))


@pytest.mark.parametrize("block", [1, 2, 3, 4])
def test_nothing_leaks_into_a_block(tiny, block):
    lm = tiny("sdar")
    batch = make_batch([3], [9], block)
    noisy, _ = corrupt(batch)
    clean, base = batch.ids, full_logits(lm, batch.ids, noisy, block)
    for first in range(0, 12, block):
        own = slice(first, min(first + block, 12))
        later, others = clean.clone(), noisy.clone()
        later[:, first:] = (later[:, first:] + 17) % 60  # clean tokens of this and later blocks
        others[:, : own.start] = (others[:, : own.start] + 5) % 60  # noisy tokens of all other blocks
        others[:, own.stop :] = (others[:, own.stop :] + 5) % 60
        changed = full_logits(lm, later, others, block)
        assert torch.allclose(changed[:, own], base[:, own], atol=1e-12)
        if first:  # while an earlier clean token is seen
            earlier = clean.clone()
            earlier[:, first - 1] = (earlier[:, first - 1] + 17) % 60
            assert not torch.allclose(full_logits(lm, earlier, noisy, block)[:, own], base[:, own], atol=1e-3)
        if own.stop - own.start > 1:  # and so is a noisy token of the same block
            inside = noisy.clone()
            inside[:, own.stop - 1] = (inside[:, own.stop - 1] + 17) % 60
            seen = full_logits(lm, clean, inside, block)[:, own.start]
            assert not torch.allclose(seen, base[:, own.start], atol=1e-3)


@pytest.mark.parametrize("block", [12, 50])
def test_one_block_is_the_plain_masked_model(tiny, block):
    lm = tiny("sdar")
    batch = make_batch([5], [7], block)
    noisy, masked = corrupt(batch)
    rows = rows_from(batch, noisy, masked, masked.double())
    assert rows.position_ids.tolist() == [list(range(12))]
    assert torch.allclose(windowed_logits(lm, rows), lm.logits(noisy, mask="full"), atol=1e-9)


def test_a_last_block_equals_what_decoding_sees(tiny):
    # [clean blocks ; noisy block] under the block-causal mask: the input of a denoising forward
    lm = tiny("sdar")
    batch = make_batch([6], [6], 4)
    noisy, masked = corrupt(batch)
    doubled = full_logits(lm, batch.ids, noisy, 4)
    for start in (4, 8):
        seen = torch.cat([batch.ids[:, :start], noisy[:, start : start + 4]], 1)
        assert torch.allclose(doubled[:, start : start + 4], lm.logits(seen)[:, start:], atol=1e-9)
    assert masked.any()


def test_full_attention_rows_are_the_sequences_themselves(tiny):
    batch = make_batch([3, 5], [6, 2], 0)
    noisy, masked = corrupt(batch)
    rows = rows_from(batch, noisy, masked, masked.float())
    assert (rows.layout, rows.block_length, rows.context) == ("full", 0, None)
    assert torch.equal(rows.ids, noisy) and torch.equal(rows.real, batch.real)
    assert rows.position_ids.tolist() == [list(range(9))] * 2
    logps = score(tiny("llada"), rows)[..., 0]
    alone = tiny("llada").logits(noisy[1:, :7]).log_softmax(-1).gather(-1, batch.ids[1:, :7, None])[0, :, 0]
    assert torch.allclose(logps[1, :7][masked[1, :7]], alone[masked[1, :7]], atol=1e-9)


def test_response_window_starts_on_the_grid():
    columns, real = response_window(torch.tensor([5, 8, 3]), torch.tensor([10, 9, 4]), 4)
    assert columns.tolist() == [list(range(4, 10)), list(range(8, 14)), list(range(6))]
    assert real.sum(1).tolist() == [6, 1, 4]


def test_another_clean_half():
    batch = make_batch([4], [4], 4)
    noisy, masked = corrupt(batch)
    other = batch.ids.flip(1)
    assert torch.equal(rows_from(batch, noisy, masked, masked.float(), clean=other).context, other)
    assert torch.equal(rows_from(batch, noisy, masked, masked.float()).context, batch.ids)


@pytest.mark.parametrize("block", [0, 4])
def test_draws_are_stacked(block):
    batch = make_batch([3, 6], [5, 5], block)
    parts = [rows_from(batch, *corrupt(batch, seed), batch.counted.float(), draw=seed) for seed in range(3)]
    rows = concatenate(parts)
    assert len(rows) == 6
    assert rows.draw.tolist() == [0, 0, 1, 1, 2, 2] and rows.owner.tolist() == [0, 1] * 3
    assert (rows.layout, rows.block_length) == (parts[0].layout, block)
    assert torch.equal(rows.ids, torch.cat([part.ids for part in parts]))
    assert (rows.context is None) == (block == 0)
    assert concatenate(parts[:1]) is parts[0]
