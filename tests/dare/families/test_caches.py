"""Feeding a window or a block over stored positions equals a computation without batches or caches, padded or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dare_bench.dare.families.cache import PositionCache
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

FULL = ("llada", "llada_moe", "dream")
BLOCKS = ("sdar", "sdar_moe", "llada2_moe")
SIZE = 4
# Norms, rotation and routers of the networks compute in float32 whatever the weights are; the plain network does not.
LIMIT = 1e-5


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


class Batch:
    """Rows of tokens in a canvas, each with padding around it."""

    def __init__(self, rows: list[tuple[int, int]], width: int, seed: int, pad: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.width, self.pad = width, pad
        self.left, self.length = [left for left, _ in rows], [length for _, length in rows]
        self.real = torch.zeros(len(rows), width, dtype=torch.long)
        for row, (left, length) in enumerate(rows):
            self.real[row, left : left + length] = 1
        self.places = (self.real.cumsum(-1) - 1).clamp(min=0)

    def tokens(self) -> Tensor:
        """Fresh random tokens, padding where padding is."""
        fresh = torch.randint(0, 64, self.real.shape, generator=self.generator)
        return fresh.masked_fill(self.real == 0, self.pad)

    def own(self, ids: Tensor, row: int) -> list[int]:
        """A row without its padding."""
        return ids[row, self.real[row].bool()].tolist()


@st.composite
def padded_rows(draw: Any) -> tuple[list[tuple[int, int]], int]:
    """(left padding, length) of each row, and the width of the canvas."""
    width = draw(st.integers(4, 14))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        left = draw(st.integers(0, width - 2))
        rows.append((left, draw(st.integers(2, width - left))))
    return rows, width


def near(found: Tensor, wanted: Tensor, limit: float = LIMIT) -> bool:
    assert found.shape == wanted.shape
    return bool(((found - wanted).abs() <= limit).all())


@pytest.mark.parametrize("family", FULL)
@settings(deadline=None, max_examples=12, derandomize=True)
@given(shape=padded_rows(), steps=st.lists(st.tuples(st.integers(0, 13), st.integers(1, 6), st.booleans()), max_size=4))
def test_a_window_over_frozen_positions(tiny, plain, family, shape, steps):
    """Prefix cache (a window up to the end), dual cache (any window), rows that drop out in between."""
    lm, batch = tiny(family), Batch(*shape, seed=len(steps), pad=tiny(family).pad_token_id)
    net = plain.PlainNetwork(lm)
    count = len(batch.left)
    cache = PositionCache(count, batch.width, lm.model.config)
    memories: list[Any] = [[{} for _ in range(lm.dims.layers)] for _ in range(count)]
    for number, (start, size, to_end) in enumerate([(0, batch.width, True), *steps]):
        start = start % batch.width
        end = batch.width if to_end else min(start + size, batch.width)
        # The first forward feeds everything, later ones leave a row out now and then.
        rows = torch.tensor([row for row in range(count) if number == 0 or count == 1 or (row + number) % 3])
        if not len(rows):
            continue
        ids, slots = batch.tokens()[rows, start:end], torch.arange(start, end).expand(len(rows), -1)
        fed = {"position_ids": batch.places[rows, start:end], "attention_mask": batch.real[rows], "cache": cache}
        cache.aim(rows, slots, batch.width)
        raw = lm.logits(ids, **fed, aligned=False)
        aligned = lm.logits(ids, **fed)  # a second forward over the same slots overwrites them with the same
        assert cache.get_seq_length() == batch.width
        for index, row in enumerate(rows.tolist()):
            is_real = batch.real[row, start:end].bool()
            if not is_real.any():
                continue
            places = batch.places[row, start:end][is_real].tolist()
            tokens = ids[index, is_real].tolist()
            wanted = net.forward(tokens, plain.everything, places=places, memory=memories[row])
            assert near(raw[index, is_real], wanted)
            shift = lm.family.shift
            assert near(aligned[index, is_real][shift:], wanted[: len(wanted) - shift])


def test_rows_may_be_fed_in_any_order(tiny):
    lm = tiny("sdar")
    ids, place = torch.arange(3 * 8).reshape(3, 8), torch.arange(8).expand(3, -1)
    cache, order = PositionCache(3, 8, lm.model.config), torch.tensor([2, 0, 1])
    cache.aim(torch.arange(3), place[:, :4], 4)
    lm.logits(ids[:, :4], position_ids=place[:, :4], cache=cache)
    cache.aim(order, place[:, 4:], 8)
    assert near(lm.logits(ids[order, 4:], position_ids=place[:, 4:], cache=cache), lm.logits(ids)[order, 4:], 1e-9)
    cache.aim(order[:2], place[:2, 4:], 8)
    found = lm.logits(ids[order[:2], 4:], position_ids=place[:2, 4:], cache=cache)
    assert near(found, lm.logits(ids)[order[:2], 4:], 1e-9)


def test_frozen_positions_matter(tiny):
    """The stored keys and values are those of the first forward: a dual cache is an approximation, and this is it."""
    lm = tiny("llada")
    ids, later = torch.arange(12)[None], torch.arange(12).flip(0)[None]
    place = torch.arange(12)[None]
    cache = PositionCache(1, 12, lm.model.config)
    cache.aim(torch.arange(1), place, 12)
    lm.logits(ids, position_ids=place, cache=cache)
    cache.aim(torch.arange(1), place[:, 4:8], 12)
    window = lm.logits(later[:, 4:8], position_ids=place[:, 4:8], cache=cache)
    mixed = torch.cat([ids[:, :4], later[:, 4:8], ids[:, 8:]], 1)
    assert not near(window, lm.logits(mixed)[:, 4:8], 1e-2)


@pytest.mark.parametrize("family", BLOCKS)
@settings(deadline=None, max_examples=12, derandomize=True)
@given(shape=padded_rows(), seed=st.integers(0, 99))
def test_block_by_block_equals_the_full_recomputation(tiny, plain, family, shape, seed):
    """Every block is fed with other tokens first, then with its own; rows are at different slots of the canvas."""
    lm, batch = tiny(family), Batch(*shape, seed=seed, pad=tiny(family).pad_token_id)
    net = plain.PlainNetwork(lm)
    clean, noisy = batch.tokens(), batch.tokens()
    cache = PositionCache(len(batch.left), batch.width, lm.model.config)
    whole = {row: net.forward(batch.own(clean, row), plain.blocks(SIZE)) for row in range(len(batch.left))}
    for start in range(0, max(batch.length), SIZE):
        sizes = {row: min(SIZE, length - start) for row, length in enumerate(batch.length) if length > start}
        for size in sorted(set(sizes.values())):  # the last blocks of rows may be shorter: fed on their own
            rows = torch.tensor([row for row, found in sizes.items() if found == size])
            places = torch.arange(start, start + size).expand(len(rows), -1)
            slots = places + torch.tensor(batch.left)[rows, None]
            end = int(slots.max()) + 1
            fed = {"position_ids": places, "attention_mask": batch.real[rows, :end], "cache": cache}
            for tokens in (noisy, clean):
                cache.aim(rows, slots, end)
                logits = lm.logits(tokens[rows[:, None], slots], **fed)
                assert cache.get_seq_length() == end
                for index, row in enumerate(rows.tolist()):
                    known = [*batch.own(clean, row)[:start], *batch.own(tokens, row)[start : start + size]]
                    alone = lm.logits(torch.tensor([known]))[0, start:]
                    assert near(logits[index], alone, 1e-6)
                    if tokens is clean:
                        assert near(logits[index], whole[row][start : start + size])


@pytest.mark.parametrize("family", BLOCKS)
@pytest.mark.parametrize("mask", ["auto", "block_causal", "tensor"])
def test_a_prompt_of_many_blocks_is_stored_at_once(tiny, plain, family, mask):
    lm = tiny(family)
    ids, place = torch.arange(2 * 14).reshape(2, 14) * 7 % 64, torch.arange(14).expand(2, -1)
    cache, rows = PositionCache(2, 14, lm.model.config), torch.arange(2)
    net = plain.PlainNetwork(lm)
    found = []
    for start, end in ((0, 8), (8, 12), (12, 14)):
        cache.aim(rows, place[:, start:end], end)
        blocks = place[:, start:end, None] // SIZE >= place[:, None, :end] // SIZE
        given_mask = blocks[:, None] if mask == "tensor" else mask
        fed = {"position_ids": place[:, start:end], "cache": cache, "mask": given_mask}
        found.append(lm.logits(ids[:, start:end], **fed))
    for row in range(2):
        wanted = net.forward(ids[row].tolist(), plain.blocks(SIZE))
        assert near(torch.cat(found, 1)[row], wanted)
    assert near(torch.cat(found, 1), lm.logits(ids), 1e-6)


@pytest.mark.parametrize("family", BLOCKS)
def test_left_padding_that_is_stored_stays_closed(tiny, family):
    """A prefill that feeds the padding too: padded slots hold keys, and no real token sees them."""
    lm = tiny(family)
    tokens = torch.arange(8)[None] * 5
    ids = torch.cat([torch.full((1, 3), lm.pad_token_id), tokens], 1)
    real = torch.tensor([[0] * 3 + [1] * 8])
    places = (real.cumsum(-1) - 1).clamp(min=0)
    cache = PositionCache(1, 11, lm.model.config)
    found = []
    for start, end in ((0, 7), (7, 11)):
        cache.aim(torch.arange(1), torch.arange(start, end)[None], end)
        fed = {"position_ids": places[:, start:end], "attention_mask": real[:, :end], "cache": cache}
        found.append(lm.logits(ids[:, start:end], **fed))
    assert torch.cat(found, 1).isfinite().all()
    assert near(torch.cat(found, 1)[0, 3:], lm.logits(tokens)[0], 1e-6)
