"""Noise laws: where masks fall, how many, and that a row's draw belongs to its seed alone."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.diffusion.corruption import (
    EPS,
    apply_mask,
    bernoulli_mask,
    block_noise_levels,
    complement,
    noise_levels,
    treat_end_as_one,
)
from dare_bench.dare.randomness import stream_seed
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=6, unique=True)


def seeds(count: int, stream: str = "noise") -> list[int]:
    return [stream_seed(0, stream, row) for row in range(count)]


def test_noise_levels_follow_the_guideline():
    levels = noise_levels(seeds(4000))
    assert levels.dtype == torch.float64
    assert float(levels.min()) >= EPS and float(levels.max()) <= 1
    uniform = (levels - EPS) / (1 - EPS)
    assert abs(float(uniform.mean()) - 0.5) < 3 * (1 / 12 / 4000) ** 0.5
    ranks = uniform.sort().values
    distance = (ranks - (torch.arange(4000) + 0.5) / 4000).abs().max()
    assert float(distance) < 1.63 / 4000**0.5  # Kolmogorov-Smirnov, 1 %


def test_bounds_of_the_noise_levels():
    levels = noise_levels(seeds(500), low=0.3, high=0.8, eps=0.0)
    assert 0.3 < float(levels.min()) < 0.31 and 0.79 < float(levels.max()) < 0.8
    assert noise_levels(seeds(3), low=1.0, high=1.0).tolist() == pytest.approx([1.0] * 3)
    assert noise_levels(seeds(3), low=0.0, high=0.0, eps=0.01).tolist() == pytest.approx([0.01] * 3)


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_the_masked_share_is_the_probability(p):
    count, length = 300, 100
    allowed = torch.ones(count, length, dtype=torch.bool)
    masked = bernoulli_mask(seeds(count), torch.full((count,), p, dtype=torch.float64), allowed)
    n = count * length
    assert abs(float(masked.double().mean()) - p) < 3 * (p * (1 - p) / n) ** 0.5
    per_row = masked.double().sum(1)  # binomial, not a fixed number
    assert float(per_row.var()) == pytest.approx(length * p * (1 - p), rel=0.35)
    both = (masked[:, 1:] & masked[:, :-1]).double().mean()  # neighbours are independent
    assert abs(float(both) - p * p) < 4 * (p * p * (1 - p * p) / n) ** 0.5


@settings(deadline=None, max_examples=40)
@given(ROWS, st.integers(1, 12), st.data())
def test_masks_stay_inside_the_allowed_positions(rows, length, data):
    bits = data.draw(st.lists(st.booleans(), min_size=len(rows) * length, max_size=len(rows) * length))
    allowed = torch.tensor(bits).view(len(rows), length)
    levels = noise_levels(rows)
    masked = bernoulli_mask(rows, levels, allowed)
    assert not (masked & ~allowed).any()
    other = complement(masked, allowed)
    assert torch.equal(masked | other, allowed)
    assert not (masked & other).any()
    assert torch.equal(bernoulli_mask(rows, torch.ones(len(rows)), allowed), allowed)
    assert not bernoulli_mask(rows, torch.zeros(len(rows)), allowed).any()
    ids = torch.arange(allowed.numel()).view_as(allowed)
    noisy = apply_mask(ids, masked, 999)
    assert torch.equal(noisy == 999, masked)
    assert torch.equal(noisy[~masked], ids[~masked])


@settings(deadline=None, max_examples=40)
@given(ROWS, st.integers(1, 12), st.integers(0, 9), st.randoms())
def test_a_row_is_corrupted_the_same_in_any_batch(rows, length, longer, random):
    def corrupt(row_seeds, width):
        levels = noise_levels(row_seeds)
        blocks = block_noise_levels(row_seeds, 3, low=0.2, high=0.9)
        masked = bernoulli_mask(row_seeds, levels, torch.ones(len(row_seeds), width, dtype=torch.bool))
        return levels.tolist(), blocks.tolist(), masked[:, :length].tolist()

    alone = {seed: [values[0] for values in corrupt([seed], length)] for seed in rows}
    random.shuffle(rows)
    together = corrupt(rows, length + longer)  # more padding changes nothing either
    assert [list(values) for values in zip(*together, strict=True)] == [alone[seed] for seed in rows]


def test_probabilities_per_position():
    p = torch.tensor([[0.0, 1.0, 0.0, 1.0]], dtype=torch.float64).expand(5, -1)
    masked = bernoulli_mask(seeds(5), p, torch.ones(5, 4, dtype=torch.bool))
    assert torch.equal(masked, p.bool())


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (3, 5), (8, 16)])
def test_stratified_levels_cover_every_stratum_once(rows, blocks):
    levels = block_noise_levels(seeds(rows), blocks, low=0.0, high=1.0, eps=0.0, stratified_seed=9)
    assert levels.shape == (rows, blocks)
    strata = (levels.flatten() * rows * blocks).floor().long().sort().values
    assert strata.tolist() == list(range(rows * blocks))


def test_stratified_levels_are_assigned_at_random_and_each_is_uniform():
    draws = torch.stack(
        [block_noise_levels([0, 1], 3, low=0.0, high=1.0, eps=0.0, stratified_seed=s) for s in range(600)]
    )
    assert ((draws.mean(0) - 0.5).abs() < 4 * (1 / 12 / 600) ** 0.5).all()
    spread = torch.arange(6).double().div(6).var()  # evenly spaced, every time
    assert torch.allclose(draws.flatten(1).var(1), spread.expand(600))
    assert len({tuple(order) for order in draws.flatten(1).argsort(1).tolist()}) > 300
    bounded = block_noise_levels([0, 1], 3, low=0.3, high=0.8, eps=0.0, stratified_seed=1)
    assert float(bounded.min()) >= 0.3 and float(bounded.max()) <= 0.8


def test_trailing_end_tokens_share_one_state():
    end = 9
    ids = torch.tensor([[1, end, 2, end, end, end], [1, 2, 3, 4, end, 0], [1, 2, 3, 4, 5, 6], [end] * 6])
    lengths = torch.tensor([6, 5, 6, 4])
    masked = torch.tensor([[1, 0, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0], [1, 0, 1, 0, 1, 0], [0, 1, 1, 1, 0, 0]]).bool()
    wanted = torch.tensor([[1, 0, 0, 1, 1, 1], [0, 1, 0, 0, 1, 0], [1, 0, 1, 0, 1, 0], [0, 0, 0, 0, 0, 0]]).bool()
    assert torch.equal(treat_end_as_one(masked, ids, lengths, end), wanted)
