"""BGPO: the bound and where it touches, one backward pass per draw, clipping, no logarithms."""

from __future__ import annotations

import math

import pytest
import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.bgpo import BGPO, BGPOConfig, bound_terms
from dare_bench.dare.diffusion.block import concatenate
from hypothesis import given, settings
from hypothesis import strategies as st

PAPER = BGPOConfig()
NUMBERS = st.floats(-3, 3)


@settings(deadline=None, max_examples=200)
@given(st.lists(NUMBERS, min_size=1, max_size=6), st.floats(-2, 2))
def test_the_bound_holds(differences, advantage):
    delta = torch.tensor(differences, dtype=torch.float64)
    terms, _, _ = bound_terms(delta, torch.full_like(delta, advantage), PAPER)
    objective = advantage * math.exp(float(delta.mean()))
    assert -float(terms.mean()) <= objective + 1e-9 * max(1.0, abs(objective))


@pytest.mark.parametrize(("advantage", "differences"), [(1.3, [1.0, -1.0]), (-0.7, [1.0, 1.0])])
def test_the_other_branch_is_no_bound(advantage, differences):
    delta = torch.tensor(differences, dtype=torch.float64)
    other = delta.exp() if advantage > 0 else 1 + delta
    objective = advantage * math.exp(float(delta.mean()))
    assert advantage * float(other.mean()) > objective + 0.1
    terms, _, _ = bound_terms(delta, torch.full_like(delta, advantage), PAPER)
    assert -float(terms.mean()) <= objective


def test_large_falls_are_finite_and_have_the_right_slope():
    delta = torch.tensor([-1.5, -40.0, 900.0, -900.0], dtype=torch.float64, requires_grad=True)
    for advantage in (2.0, -2.0):
        for options in (PAPER, BGPOConfig(eps_low=0.2), BGPOConfig(eps_low=0.2, dual_clip=3.0)):
            terms, ratio, _ = bound_terms(delta, torch.full((4,), advantage, dtype=torch.float64), options)
            (gradient,) = torch.autograd.grad(terms.sum(), delta)
            assert torch.isfinite(terms).all() and torch.isfinite(gradient).all() and torch.isfinite(ratio).all()
            if advantage > 0:
                assert gradient[:2].tolist() == [-2.0, -2.0]


def test_clip_stops_what_moves_away():
    options = BGPOConfig(eps_low=0.2, eps_high=0.3)
    delta = torch.tensor([0.1, 0.5, -0.5, 0.0], dtype=torch.float64)
    for sign, expected in ((1.0, [False, True, False, False]), (-1.0, [False, False, True, False])):
        leaf = delta.clone().requires_grad_()
        terms, _, clipped = bound_terms(leaf, torch.full((4,), sign, dtype=torch.float64), options)
        (gradient,) = torch.autograd.grad(terms.sum(), leaf)
        assert clipped.tolist() == expected
        assert (gradient == 0).tolist() == expected


@pytest.fixture(params=[0, 4], ids=["full", "blocks"])
def batch(request, make_batch):
    return make_batch([3, 5, 4, 6], [8, 5, 6, 7], counted=[8, 2, 6, 4], block_length=request.param,
                      rewards=[1.0, 0.0, 0.5, 0.0], groups=[0, 0, 1, 1])  # fmt: skip


def values(rows, shift):
    found = -2 + (rows.position_ids * 0.7 + rows.owner[:, None] + rows.draw[:, None] * 1.3 + shift).double().sin()
    return torch.where(rows.mask, found, 0.0)[..., None]


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean"])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_draw_by_draw_is_one_shot(batch, aggregation, beta):
    algorithm = BGPO(BGPOConfig(draws=5, aggregation=aggregation, eps_low=0.2, dual_clip=3.0, beta=beta))
    context = Context(3, batch=batch)
    advantages = algorithm.advantages(batch)
    parts = list(algorithm.rows(batch, context))
    rows = concatenate(parts)
    leaf = values(rows, 0.0).requires_grad_()
    old, ref = values(rows, 0.4), values(rows, 0.9)
    whole, _ = algorithm.loss(leaf, old, ref if beta else None, rows, advantages, context)
    (expected,) = torch.autograd.grad(whole, leaf)
    total, begin = 0.0, 0
    found = torch.zeros_like(expected)
    for part in parts:
        span = slice(begin, begin + len(part))
        piece = leaf[span].detach().clone().requires_grad_()
        loss, _ = algorithm.loss(piece, old[span], ref[span] if beta else None, part, advantages, context)
        (found[span],) = torch.autograd.grad(loss, piece)
        total, begin = total + float(loss.detach()), begin + len(part)
    assert total == pytest.approx(float(whole.detach()), rel=1e-12)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)
    assert expected.abs().sum() > 0


def test_at_the_rollout_policy_the_gradient_is_that_of_the_estimate(batch):
    algorithm = BGPO(BGPOConfig(draws=4))
    context = Context(3, batch=batch)
    advantages = algorithm.advantages(batch)
    rows = concatenate(list(algorithm.rows(batch, context)))
    leaf = values(rows, 0.0).requires_grad_()
    loss, metrics = algorithm.loss(leaf, leaf.detach(), None, rows, advantages, context)
    (gradient,) = torch.autograd.grad(loss, leaf)
    expected = -advantages[rows.owner, None] * torch.where(rows.mask, rows.weight, 0.0) / (4 * len(batch.ids))
    torch.testing.assert_close(gradient[..., 0], expected)
    assert metrics["ratio_mean"] == pytest.approx(1.0)


def test_length_norm_divides_the_weights(batch):
    context = Context(3, batch=batch)
    plain, divided = (
        concatenate(list(BGPO(BGPOConfig(draws=4, length_norm=norm)).rows(batch, context))) for norm in (False, True)
    )
    tokens = batch.counted.sum(1)[plain.owner, None]
    torch.testing.assert_close(divided.weight * tokens, plain.weight)
    assert torch.equal(plain.mask, divided.mask)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"draws": 6, "strata": 4}, "strata: 4; allowed: a divisor of draws"),
        ({"draws": 4, "strata": 5}, "strata: 5; allowed: 1 to 4"),
        ({"eps_high": 0.2}, "eps_high: 0.2 without eps_low"),
        ({"aggregation": "mean"}, "aggregation: 'mean'; allowed"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        BGPOConfig(**options)


def test_presets_build():
    entry = registry.get("bgpo")
    for preset in entry.presets.values():
        assert entry.cls(entry.config_class(**preset)).needs.ref == "none"
    assert entry.config_class(**entry.presets["paper"]).eps_low is None
    assert len(entry.families) == 6
