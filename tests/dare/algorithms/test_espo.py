"""ESPO and what it shares with other ratios of whole responses: eps 0, divergences, lengths, coupled draws."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.espo import ESPO, ESPOConfig
from dare_bench.dare.algorithms.sequence import sequence_kl
from dare_bench.dare.conformance.algorithms import _elbo
from dare_bench.dare.diffusion.block import concatenate


def run(options, elbo, old, ref=None, advantages=None, tokens=8):
    """Loss, metrics and the gradient with respect to the estimates of some responses of equal length."""
    value = torch.tensor(elbo, dtype=torch.float64).requires_grad_()
    counted = torch.ones(len(value), tokens, dtype=torch.bool)
    rows, new = _elbo.rows_of(value[:, None])
    before, other = (
        None if given is None else _elbo.rows_of(torch.tensor(given, dtype=torch.float64)[:, None])[1]
        for given in (old, ref)
    )
    given = torch.tensor(advantages or [1.0] * len(elbo), dtype=torch.float64)
    loss, metrics = ESPO(options).loss(new, before, other, rows, given, _elbo.context_of(_elbo.counted_batch(counted)))
    return float(loss.detach()), metrics, torch.autograd.grad(loss, value)[0]


def test_no_room_at_all_passes_the_first_update_whole():
    options = ESPOConfig(draws=1, eps_low=0.0, beta=0.0)
    _, metrics, gradient = run(options, [-20.0, -30.0], [-20.0, -30.0], advantages=[1.0, -1.0])
    assert gradient.tolist() == [-1 / 16, 1 / 16]
    assert metrics["clip_fraction"] == 0.0


def test_no_room_passes_only_what_moves_back():
    options = ESPOConfig(draws=1, eps_low=0.0, beta=0.0)
    _, _, gradient = run(options, [-19.0, -21.0, -19.0, -21.0], [-20.0] * 4, advantages=[1.0, 1.0, -1.0, -1.0])
    assert (gradient != 0).tolist() == [False, True, True, False]


def test_equal_change_per_token_is_an_equal_ratio_at_any_length():
    options = ESPOConfig(draws=1, beta=0.0)
    one = run(options, [-10.0], [-10.8], tokens=8)
    two = run(options, [-20.0], [-21.6], tokens=16)
    assert one[0] == pytest.approx(two[0], rel=1e-12)
    assert one[1]["ratio_mean"] == pytest.approx(two[1]["ratio_mean"], rel=1e-12)


def test_gradient_of_the_kl_is_beta_times_the_difference_per_token():
    options = ESPOConfig(draws=1, beta=0.3)
    _, metrics, gradient = run(options, [-10.0, -12.0], [-10.0, -12.0], [-11.0, -9.0], advantages=[0.0, 1e-300])
    assert gradient.tolist() == pytest.approx([0.3 * 1 / 8 / 2, 0.3 * -3 / 8 / 2])
    assert metrics["kl"] == pytest.approx((0.5 + 4.5) / 8 / 2)


def test_divergences_are_right_on_average():
    """k1 with the gradient of k2, k3 with a straight line behind a difference of 20."""
    value = torch.tensor([-3.0, -60.0, -1.0], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([-2.5, -1.0, -9.0], dtype=torch.float64)
    (k1,) = torch.autograd.grad(sequence_kl(value, ref, "k1").sum(), value)
    torch.testing.assert_close(k1, 1 + (value - ref).detach())
    found = sequence_kl(value, ref, "k3")
    (k3,) = torch.autograd.grad(found.sum(), value)
    assert torch.isfinite(found).all() and (found >= 0).all()
    assert k3[1] < -1e8 and k3[2] > 0
    with pytest.raises(ValueError, match="unknown KL estimate 'abs'"):
        sequence_kl(value, ref, "abs")


@pytest.fixture(params=[0, 4], ids=["full", "blocks"])
def batch(request, make_batch):
    return make_batch([3, 5, 4, 6], [8, 5, 6, 7], counted=[8, 2, 6, 0], block_length=request.param,
                      rewards=[1.0, 0.0, 0.5, 0.0], groups=[0, 0, 1, 1])  # fmt: skip


@pytest.mark.parametrize("counted", ["eos", "canvas"])
def test_a_draw_scores_every_token_once(batch, counted):
    algorithm = ESPO(ESPOConfig(group_size=2, draws=3, counted=counted))
    rows = concatenate(list(algorithm.rows(batch, Context(1, batch=batch))))
    for draw in range(3):
        seen = torch.zeros_like(batch.ids)
        part = rows.select((rows.draw == draw).nonzero()[:, 0])
        owner = part.owner[:, None].expand(part.mask.shape)[part.mask]
        seen.index_put_((owner, part.position_ids[part.mask]), torch.ones_like(owner), accumulate=True)
        assert torch.equal(seen, algorithm.counted(batch).long())


def test_inner_iterations_have_draws_of_their_own(batch):
    algorithm = ESPO(ESPOConfig(group_size=2, draws=2, counted="eos"))
    masks = [concatenate(list(algorithm.rows(batch, Context(1, inner=inner, batch=batch)))).mask for inner in (0, 1)]
    assert masks[0].shape == masks[1].shape and not torch.equal(*masks)


def test_responses_without_tokens_are_left_out_of_the_mean(batch):
    algorithm = ESPO(ESPOConfig(group_size=2, draws=2, counted="eos", beta=0.0))
    context = Context(1, batch=batch)
    rows = concatenate(list(algorithm.rows(batch, context)))
    new = torch.where(rows.mask, -1.0, 0.0)[..., None].double().requires_grad_()
    loss, metrics = algorithm.loss(new, new.detach(), None, rows, torch.ones(4, dtype=torch.float64), context)
    assert float(loss.detach()) == -1.0
    assert metrics["ratio_mean"] == 1.0


def test_rounding_of_old_scores_does_not_clip_the_first_pass(batch):
    algorithm = ESPO(ESPOConfig(group_size=2, draws=2, counted="eos", eps_low=0.0, beta=0.0))
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5], dtype=torch.float64)
    found = {}
    for inner in (0, 1):
        context = Context(1, inner=inner, inner_iterations=2, batch=batch)
        rows = concatenate(list(algorithm.rows(batch, context)))
        new = torch.where(rows.mask, -1.0, 0.0)[..., None].double().requires_grad_()
        noisy = new.detach() - torch.where(rows.mask, 1e-7, 0.0)[..., None]
        loss, metrics = algorithm.loss(new, noisy, None, rows, advantages, context)
        (gradient,) = torch.autograd.grad(loss, new)
        found[inner] = {int(owner) for owner in rows.owner[gradient.flatten(1).ne(0).any(1)]}, metrics["clip_fraction"]
    assert found[0] == ({0, 1, 2}, 0.0)
    assert found[1][0] == {1} and found[1][1] > 0


def test_presets_build():
    entry = registry.get("espo")
    for preset in entry.presets.values():
        assert entry.config_class(**preset).advantage in ("loo", "mean")
    assert entry.config_class(**entry.presets["repo-countdown"]).eps_low == 0.0
    assert {"paper", "repo", "dare"} <= set(entry.presets)
    assert {"llada", "dream", "sdar"} <= entry.families
    with pytest.raises(ValueError, match="draws: 0; allowed"):
        ESPOConfig(draws=0)
