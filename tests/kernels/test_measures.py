"""Probability, margin and entropy of logits equal their definitions in float64, in every dtype."""

from __future__ import annotations

import math

import pytest
import torch
from dare_bench.kernels import measures
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@given(st.integers(0, 10**6), st.integers(2, 40), st.floats(0.1, 60), st.sampled_from(DTYPES), st.integers(0, 1))
@settings(deadline=None)
def test_equal_the_definitions(seed, vocab, scale, dtype, closed):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(3, vocab, generator=generator, dtype=torch.float64) * scale).to(dtype)
    logits[:, vocab - closed :] = -torch.inf  # a closed token, or none
    tokens = torch.randint(vocab, (3,), generator=generator)
    tolerance = {"atol": 1e-12, "rtol": 1e-9} if dtype == torch.float64 else {"atol": 2e-5, "rtol": 2e-4}
    pairs = [
        (measures.probability(logits, tokens), measures.probability_reference(logits, tokens)),
        (measures.margin(logits), measures.margin_reference(logits)),
        (measures.entropy(logits), measures.entropy_reference(logits)),
    ]
    for found, wanted in pairs:
        assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(found.double(), wanted, **tolerance)
        assert (found >= 0).all()


def test_by_hand():
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125], [1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]]).log()
    assert measures.probability(logits, torch.tensor([1, 0, 0])).tolist() == pytest.approx([0.25, 0.25, 1.0])
    assert measures.margin(logits).tolist() == pytest.approx([0.25, 0.0, 1.0])
    assert measures.entropy(logits).tolist() == pytest.approx([1.75 * math.log(2), 2 * math.log(2), 0.0])


def test_bfloat16_logits_are_measured_in_float32():
    logits = torch.tensor([[8.0, 0.0, 0.0]], dtype=torch.bfloat16)
    found = float(measures.probability(logits, torch.tensor([0])))
    assert found == pytest.approx(1 / (1 + 2 * math.exp(-8)), abs=1e-7)
    assert found != float(torch.tensor(found, dtype=torch.bfloat16))
