"""GDPO: the quadrature is right, its variance is lower, and the ratio is that of whole responses."""

from __future__ import annotations

import itertools

import pytest
import torch
from dare_bench.dare.algorithms import estimators
from dare_bench.dare.algorithms import levels as noise_levels
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.gdpo import GDPO, GDPOConfig
from dare_bench.dare.diffusion.block import concatenate
from dare_bench.dare.randomness import uniform

RESPONSES = [4, 6]


@pytest.fixture
def batch(make_batch):
    return make_batch([3, 2], RESPONSES, rewards=[1.0, 0.0], groups=[0, 0])


def rows_of(algorithm, batch, seed=0, **context):
    return concatenate(list(algorithm.rows(batch, Context(run_seed=seed, batch=batch, **context))))


def toy_logps(rows):
    """Log-probabilities of a model that looks at how many tokens of the row are masked: [N, S, 1]."""
    share = rows.mask.sum(1, keepdim=True).double() / 7
    place = torch.arange(rows.mask.shape[1]).double()
    return torch.where(rows.mask, -0.3 - share - 0.1 * (place % 3) * share, 0.0)[..., None]


def exact(batch, row):
    """The ELBO of the toy model: every mask of every level, by the Beta integral over levels."""
    start, n = int(batch.prompt_lengths[row]), RESPONSES[row]
    total = 0.0
    for k in range(1, n + 1):
        chosen = list(itertools.combinations(range(n), k))
        inner = sum(sum(-0.3 - k / 7 - 0.1 * ((start + i) % 3) * k / 7 for i in each) for each in chosen) / len(chosen)
        total += inner / k  # the integral of C(n, k) t^(k - 1) (1 - t)^(n - k) over t is 1 / k
    return total


@pytest.mark.parametrize("levels", [2, 3])
def test_gauss_levels_are_unbiased_for_short_responses(batch, levels):
    algorithm = GDPO(GDPOConfig(levels=levels, draws=1))
    found = []
    for seed in range(1500):
        rows = rows_of(algorithm, batch, seed)
        found.append(algorithm.estimate(toy_logps(rows), rows, 2))
    values = torch.stack(found)
    error = values.std(0) / len(values) ** 0.5
    for row in range(2):
        if RESPONSES[row] <= 2 * levels:
            assert abs(float(values[:, row].mean()) - exact(batch, row)) < 4 * float(error[row])


def test_fixed_levels_scatter_less_than_drawn_ones(make_batch):
    """Double Monte Carlo, levels and masks drawn, with the same number of forwards."""
    batch = make_batch([3], [40], rewards=[1.0], groups=[0])
    fixed, drawn = [], []
    for seed in range(300):
        context = Context(run_seed=seed, batch=batch)
        rows = rows_of(GDPO(GDPOConfig(levels=3)), batch, seed)
        fixed.append(GDPO(GDPOConfig(levels=3)).estimate(toy_logps(rows), rows, 1))
        levels = uniform([seed], 3)[0]
        parts = [
            estimators.elbo_rows(batch, masked, weight, draw, batch.counted)
            for draw, (masked, weight) in enumerate(noise_levels.level_masks(context, batch, batch.counted, levels))
        ]
        rows = concatenate(parts)
        drawn.append(estimators.combine(estimators.sum_by_draw(toy_logps(rows), rows, 1, 3)))
    assert float(torch.stack(fixed).var()) < 0.7 * float(torch.stack(drawn).var())


def test_weights_sum_to_one_and_more_draws_share_them():
    for draws in (1, 4):
        weights = GDPO(GDPOConfig(levels=3, draws=draws)).draw_weights()
        assert len(weights) == 3 * draws
        assert float(weights.sum()) == pytest.approx(1)


def test_ratio_and_kl_do_not_depend_on_length(make_batch):
    """Shifting every token's log-probability by c moves the log-ratio by c, however long the response is."""
    batch = make_batch([2, 2], [3, 9], rewards=[1.0, 0.0], groups=[0, 0])
    algorithm = GDPO(GDPOConfig(levels=3, beta=1.0, eps_low=0.5, draws=200))
    rows = rows_of(algorithm, batch)
    old = toy_logps(rows)
    new = torch.where(rows.mask[..., None], old + 0.1, old)
    for value, before in ((new, old),):
        ratio = (algorithm.estimate(value, rows, 2) - algorithm.estimate(before, rows, 2)) / torch.tensor([3, 9])
        torch.testing.assert_close(ratio, torch.full((2,), 0.1, dtype=torch.float64), atol=0.01, rtol=0)
    _, metrics = algorithm.loss(new, old, old, rows, torch.zeros(2), Context(0, batch=batch))
    assert metrics["kl"] == pytest.approx(torch.tensor(-0.1).exp().item() + 0.1 - 1, abs=2e-3)


def test_advantages_are_rewards_less_their_mean(batch):
    torch.testing.assert_close(GDPO().advantages(batch), torch.tensor([0.5, -0.5], dtype=torch.float64))


@pytest.mark.parametrize(("field", "value"), [("levels", 0), ("rule", "simpson"), ("draws", 0)])
def test_wrong_options_are_named(field, value):
    with pytest.raises(ValueError, match=f"{field}: {value!r}; allowed"):
        GDPOConfig(**{field: value})


def test_it_learns_nothing_from_equal_rewards_and_something_from_others(batch, tiny):
    from dare_bench.dare.training import replay

    lm = tiny("llada", dtype=torch.float64)
    algorithm = GDPO(GDPOConfig(levels=2))
    rows, context = rows_of(algorithm, batch), Context(0, batch=batch)
    for rewards, moves in (([1.0, 1.0], False), ([1.0, 0.0], True)):
        batch.rewards = torch.tensor(rewards, dtype=torch.float64)
        lm.model.zero_grad()
        replay.backward(lm, algorithm, rows, algorithm.advantages(batch), context, micro_rows=2)
        grads = [each.grad for each in lm.model.parameters() if each.grad is not None]
        assert any(bool(each.any()) for each in grads) == moves
