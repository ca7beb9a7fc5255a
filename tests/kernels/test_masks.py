"""Masks equal their definition, written as loops."""

from __future__ import annotations

import torch
from dare_bench.kernels.masks import block_causal_mask, doubled_mask, key_mask
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 6))
def test_block_causal_mask_equals_its_definition(queries, block, cached):
    keys = torch.arange(cached + queries)[None]
    mask = block_causal_mask(keys[:, cached:], block, keys)
    assert mask.shape == (1, 1, queries, cached + queries)
    for q in range(queries):
        for k in range(cached + queries):
            assert mask[0, 0, q, k].item() == ((cached + q) // block >= k // block)


def test_block_causal_mask_is_bidirectional_inside_a_block_and_counts_per_row():
    mask = block_causal_mask(torch.tensor([[0, 1, 2, 3], [0, 0, 0, 1]]), 2)
    assert mask[0, 0].int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert mask[1, 0].all()


def test_block_as_long_as_the_row_is_full_attention_and_length_one_is_causal():
    positions = torch.arange(5)[None]
    assert block_causal_mask(positions, 5).all()
    assert torch.equal(block_causal_mask(positions, 1)[0, 0], torch.ones(5, 5, dtype=torch.bool).tril())


def test_key_mask_closes_keys_only():
    mask = key_mask(torch.tensor([[1, 1, 0], [0, 1, 1]])).expand(2, 1, 4, 3)
    assert (mask[0, 0] == torch.tensor([True, True, False])).all()
    assert (mask[1, 0] == torch.tensor([False, True, True])).all()


@given(st.integers(1, 7), st.integers(1, 4), st.data())
def test_doubled_mask_equals_its_definition(length, block, data):
    # the noisy part may be any window of the sequence
    start = data.draw(st.integers(0, length - 1))
    noisy = list(range(start, data.draw(st.integers(start + 1, length))))
    mask = doubled_mask(torch.tensor([noisy]), torch.arange(length)[None], block)[0, 0]
    tokens = [(position, True) for position in noisy] + [(position, False) for position in range(length)]
    assert mask.shape == (len(tokens), len(tokens))
    for q, (query, query_is_noisy) in enumerate(tokens):
        for k, (key, key_is_noisy) in enumerate(tokens):
            bq, bk = query // block, key // block
            if query_is_noisy:
                wanted = bq == bk if key_is_noisy else bq > bk
            else:
                wanted = not key_is_noisy and bq >= bk
            assert mask[q, k].item() == wanted


def test_doubled_mask_of_padded_rows_opens_real_keys_and_leaves_no_query_empty():
    positions = torch.arange(4)[None]
    noisy_real, clean_real = torch.tensor([[1, 0, 1, 0]]), torch.tensor([[1, 1, 1, 0]])
    mask = doubled_mask(positions, positions, 2, noisy_real=noisy_real, clean_real=clean_real)[0, 0]
    plain = doubled_mask(positions, positions, 2)[0, 0]
    keys = torch.cat([noisy_real, clean_real], 1)[0].bool()
    off_diagonal = ~torch.eye(8, dtype=torch.bool)
    assert torch.equal(mask & off_diagonal, plain & keys & off_diagonal)
    assert mask.any(1).all()
    # with one part given, the other counts as real throughout
    half = doubled_mask(positions, positions, 2, clean_real=clean_real)[0, 0]
    assert torch.equal(half[:, :4] & off_diagonal[:, :4], plain[:, :4] & off_diagonal[:, :4])
