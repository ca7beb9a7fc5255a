"""wd1: softmax weights within groups, and a loss that turns round with the advantages."""

from __future__ import annotations

import math

import pytest
import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.d1 import D1
from dare_bench.dare.algorithms.wd1 import WD1, WD1Config
from hypothesis import given
from hypothesis import strategies as st

PROMPTS, RESPONSES, COUNTED = [3, 5, 4, 6, 2, 7], [8, 5, 6, 4, 7, 3], [8, 2, 6, 4, 1, 3]
GROUPS = [0, 0, 1, 1, 1, 0]
rewards = st.lists(st.floats(-50, 50, width=32), min_size=6, max_size=6)


@pytest.fixture
def batch(make_batch):
    return make_batch(PROMPTS, RESPONSES, counted=COUNTED, groups=GROUPS, rewards=[1.0, 0.0, 0.5, 0.25, 1.0, 0.0])


def graded(make_batch, values):
    return make_batch(PROMPTS, RESPONSES, counted=COUNTED, groups=GROUPS, rewards=values)


def loss_of(algorithm, batch, scale=1.0):
    (rows,) = algorithm.rows(batch, Context(0))
    generator = torch.Generator().manual_seed(1)
    new = torch.where(rows.mask, -scale * torch.rand(rows.ids.shape, generator=generator).double(), 0.0)[..., None]
    leaf = new.requires_grad_()
    loss, metrics = algorithm.loss(leaf, None, None, rows, algorithm.advantages(batch), Context(0, batch=batch))
    (gradient,) = torch.autograd.grad(loss, leaf)
    return float(loss.detach()), gradient[..., 0], metrics


@given(values=rewards, psi=st.floats(0, 20))
def test_weights_sum_to_one_in_each_group(make_batch, values, psi):
    batch = graded(make_batch, values)
    algorithm = WD1(WD1Config(psi=psi))
    for weights in algorithm.weights(batch.rewards, batch.groups):
        assert (weights >= 0).all()
        assert torch.isfinite(weights).all()
        for group in (0, 1):
            assert float(weights[batch.groups == group].sum()) == pytest.approx(1.0)


def test_weights_by_hand(make_batch):
    batch = make_batch([2] * 3, [2] * 3, groups=[4, 4, 9], rewards=[1.0, 0.0, 5.0])
    algorithm = WD1(WD1Config(psi=math.log(9)))
    positive, negative = algorithm.weights(batch.rewards, batch.groups)
    torch.testing.assert_close(positive, torch.tensor([0.9, 0.1, 1.0], dtype=torch.float64))
    torch.testing.assert_close(negative, torch.tensor([0.1, 0.9, 1.0], dtype=torch.float64))
    torch.testing.assert_close(algorithm.advantages(batch), torch.tensor([0.4, -0.4, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("constant", [0.0, 0.7, -3.0])
def test_constant_rewards_leave_exactly_nothing(make_batch, constant):
    loss, gradient, _ = loss_of(WD1(), graded(make_batch, [constant] * 6))
    assert loss == 0.0
    assert not gradient.any()


def test_constant_rewards_still_train_the_positive_part(make_batch):
    """Supervised learning on samples: every response has the same weight."""
    loss, gradient, _ = loss_of(WD1(WD1Config(parts="positive")), graded(make_batch, [0.5] * 6))
    assert loss > 0
    counted = graded(make_batch, [0.5] * 6).counted
    assert torch.allclose(gradient[counted], torch.tensor(-1 / 3 / 2, dtype=torch.float64))


@given(values=rewards, shift=st.integers(-8, 8))
def test_a_constant_added_to_rewards_changes_nothing(make_batch, values, shift):
    one, two = (WD1().advantages(graded(make_batch, [value + extra for value in values])) for extra in (0, shift))
    torch.testing.assert_close(one, two, atol=1e-9, rtol=0)


def test_the_sign_of_the_advantages_is_the_sign_of_the_loss(batch):
    loss, gradient, _ = loss_of(WD1(), batch)
    batch.rewards = -batch.rewards
    turned, other, _ = loss_of(WD1(), batch)
    assert loss == pytest.approx(-turned, abs=1e-12)
    torch.testing.assert_close(other, -gradient)
    assert loss != 0


def test_both_is_the_sum_of_its_parts(batch):
    losses = {parts: loss_of(WD1(WD1Config(parts=parts)), batch)[0] for parts in ("both", "positive", "negative")}
    assert losses["both"] == pytest.approx(losses["positive"] + losses["negative"], abs=1e-12)
    assert losses["positive"] > 0 > losses["negative"]


def test_a_group_s_weights_do_not_depend_on_other_groups(batch, make_batch):
    """The published trainer takes the softmax over a device's batch."""
    alone = make_batch([3, 5, 7], [8, 5, 3], groups=[0, 0, 0], rewards=[1.0, 0.0, 0.0])
    own = WD1().advantages(alone)
    torch.testing.assert_close(2 * WD1().advantages(batch)[batch.groups == 0], own)


def test_the_sum_over_tokens_is_not_divided_by_the_length(batch):
    _, gradient, _ = loss_of(WD1(), batch)
    expected = -WD1().advantages(batch)[:, None] * batch.counted
    torch.testing.assert_close(gradient, expected)


def test_rows_are_those_of_d1(batch):
    (rows,), (other,) = (algorithm.rows(batch, Context(3, inner=1)) for algorithm in (WD1(), D1()))
    for name in ("ids", "mask", "targets", "weight"):
        assert torch.equal(getattr(rows, name), getattr(other, name))


@pytest.mark.parametrize("options", [{"psi": -1}, {"parts": "none"}, {"prompt_mask": 2}])
def test_refused_options(options):
    with pytest.raises(ValueError, match=rf"{next(iter(options))}: .*allowed"):
        WD1Config(**options)


def test_presets():
    entry = registry.get("wd1")
    config = entry.config_class(**entry.presets["repo"])
    assert (config.group_size, config.inner_iterations, config.psi, config.parts) == (6, 12, 1.0, "both")
    assert not entry.needs.old
    assert entry.needs.ref == "none"
