"""VRPO and naive DPO: symmetry, ln 2, unbiased scores, the order of their variances."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.dpo import DPO, DPOConfig
from dare_bench.dare.algorithms.vrpo import VRPO, VRPOConfig
from dare_bench.dare.diffusion.block import concatenate
from dare_bench.dare.training import replay

TOKENS = 12


def pairs_of(make_batch, prompts, responses, block_length=0):
    batch = make_batch(prompts, responses, block_length=block_length)
    batch.groups = torch.arange(len(prompts)) // 2
    batch.chosen = torch.arange(len(prompts)) % 2 == 0
    return batch


def run(algorithm, batch, model):
    """Rows, loss and metrics under log-probabilities `model(rows, who)`."""
    context = Context(5, batch=batch)
    rows = concatenate(list(algorithm.rows(batch, context)))
    new, ref = (torch.where(rows.mask, model(rows, who), 0.0)[..., None] for who in ("policy", "reference"))
    loss, metrics = algorithm.loss(new, None, ref, rows, algorithm.advantages(batch), context)
    return rows, (new, ref), loss, metrics


def wave(rows, who):
    """Log-probabilities that depend on who, which response, and how much is masked."""
    share = rows.mask.sum(1, keepdim=True) / 8
    return -2 + (rows.position_ids + rows.owner[:, None] * (2 if who == "policy" else 3)).double().sin() - share


@pytest.fixture(params=[0, 4], ids=["full", "blocks"])
def batch(request, make_batch):
    return pairs_of(make_batch, [3, 3, 5, 5], [8, 5, 6, 7], request.param)


def test_the_reference_itself_gives_ln_2(batch):
    for draws in (1, 4):
        _, _, loss, metrics = run(
            VRPO(VRPOConfig(draws=draws, sft_weight=0.0)), batch, lambda rows, who: wave(rows, "")
        )
        assert float(loss) == math.log(2)
        assert metrics["margin"] == 0.0
    _, _, loss, _ = run(DPO(DPOConfig()), batch, lambda rows, who: wave(rows, ""))
    assert abs(float(loss) - math.log(2)) > 1e-4


def test_swapping_the_sides_negates_the_score(batch):
    algorithm = VRPO(VRPOConfig(draws=3, sft_weight=0.0))
    _, _, loss, metrics = run(algorithm, batch, wave)
    turned = replace(batch, chosen=~batch.chosen)
    _, _, other, found = run(algorithm, turned, wave)
    assert found["margin"] == pytest.approx(-metrics["margin"], abs=1e-12)
    assert metrics["margin"] != 0.0
    assert found["elbo_chosen"] == pytest.approx(metrics["elbo_rejected"])
    assert float(other) != pytest.approx(float(loss), abs=1e-6)


def test_a_full_mask_has_the_sum_of_all_tokens(make_batch):
    batch = pairs_of(make_batch, [3, 3], [1, 1])
    rows, (new, _), _, metrics = run(VRPO(VRPOConfig(draws=2)), batch, wave)
    assert torch.equal(rows.weight[rows.mask], torch.ones(4, dtype=torch.float64))
    assert metrics["elbo_chosen"] == pytest.approx(float(new[rows.owner == 0].sum()) / 2)


def test_sft_term_and_padded_length(batch):
    plain = run(VRPO(VRPOConfig(draws=4, sft_weight=0.0)), batch, wave)
    full = run(VRPO(VRPOConfig(draws=4, sft_weight=0.05)), batch, wave)
    terms, _ = VRPO(VRPOConfig(draws=4)).terms(*plain[1], plain[0], 4)
    per_token = (terms.mean(1) / batch.counted.sum(1))[batch.chosen].mean()
    assert float(full[2] - plain[2]) == pytest.approx(-0.05 * float(per_token), abs=1e-12)
    scaled = run(VRPO(VRPOConfig(draws=4, sft_weight=0.0, elbo_norm="padded_length", padded_length=10)), batch, wave)
    assert scaled[3]["margin"] == pytest.approx(plain[3]["margin"] / 10)


def test_noise_of_its_own_for_the_reference(batch):
    rows, (new, ref), _, _ = run(DPO(DPOConfig(draws=3)), batch, wave)
    assert rows.draw.unique().tolist() == list(range(6))
    for owner in range(4):
        sides = [
            rows.mask[(rows.owner == owner) & (side * 3 <= rows.draw) & (rows.draw < side * 3 + 3)] for side in (0, 1)
        ]
        assert not torch.equal(*sides)
    algorithm = DPO(DPOConfig(draws=3))
    first = (rows.draw < 3)[:, None, None]
    terms, other = algorithm.terms(new, ref, rows, 4)
    again, _ = algorithm.terms(torch.where(first, new, 9.0), ref, rows, 4)
    assert torch.equal(terms, again)
    _, again = algorithm.terms(new, torch.where(first, 9.0, ref), rows, 4)
    assert torch.equal(other, again)


@pytest.fixture(scope="module")
def factor_scores(make_batch):
    """Scores of many pairs under a model whose log-probabilities depend on what is masked; by (n_t, n_y, shared)."""
    count = 1500
    batch = pairs_of(make_batch, [1] * 2 * count, [TOKENS] * 2 * count)
    generator = torch.Generator().manual_seed(2)
    base = -1.5 - torch.rand(TOKENS, generator=generator, dtype=torch.float64)
    ties = torch.randn(TOKENS, TOKENS, generator=generator, dtype=torch.float64) * 0.25
    change = torch.randn(TOKENS, TOKENS, generator=generator, dtype=torch.float64) * 0.02

    def model(rows, who):
        hidden = rows.mask[:, 1:].double()
        found = base - (hidden @ ties).square() - hidden.mean(1, keepdim=True)
        found = found + (hidden @ change + 0.05 if who == "policy" else 0.0)
        return torch.cat([torch.zeros(len(hidden), 1, dtype=torch.float64), found], 1)

    def scores(times, masks, shared):
        options = VRPOConfig(draws=times * masks, masks_per_count=masks, shared_noise=shared, sft_weight=0.0)
        algorithm = VRPO(options)
        rows, logps, _, _ = run(algorithm, batch, model)
        terms, other = algorithm.terms(*logps, rows, 2 * count)
        return algorithm.scores(terms.mean(1) - other.mean(1), batch)[0]

    settings = [(1, 1, False), (4, 1, False), (1, 1, True), (1, 4, True), (2, 2, True), (4, 1, True), (8, 1, True)]
    return {setting: scores(*setting) for setting in settings}


def test_every_allocation_is_unbiased(factor_scores):
    """Chosen and rejected are alike here: the score of every allocation is zero on average."""
    for values in factor_scores.values():
        assert abs(float(values.mean())) < 4 * float(values.std()) / len(values) ** 0.5


def test_order_of_variances(factor_scores):
    variance = {setting: float(values.var()) for setting, values in factor_scores.items()}
    assert variance[4, 1, True] < variance[1, 1, True] < variance[1, 1, False]
    assert variance[4, 1, True] < variance[1, 4, True] < variance[1, 1, True]
    assert variance[4, 1, True] < variance[2, 2, True] < variance[1, 4, True]
    assert variance[8, 1, True] < variance[4, 1, True]
    assert variance[4, 1, False] < variance[1, 1, False]
    for times in (1, 4):
        assert variance[times, 1, True] < variance[times, 1, False] / 10


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_two_passes_give_the_direct_gradient(tiny, make_batch, family):
    lm = tiny(family)
    batch = pairs_of(make_batch, [3, 3, 5, 5], [8, 5, 6, 7], 4 if family == "sdar" else 0)
    algorithm, context = VRPO(VRPOConfig(draws=3)), Context(5, batch=batch)
    parts = list(algorithm.rows(batch, context))
    rows = concatenate(parts)
    ref = [replay.score_all(lm, part, None) - 0.1 * part.mask[..., None] for part in parts]
    loss, _ = algorithm.loss(
        replay.score(lm, rows), None, replay.joined(ref, rows), rows, algorithm.advantages(batch), context
    )
    loss.backward()
    direct = {name: p.grad.clone() for name, p in lm.model.named_parameters() if p.grad is not None}
    lm.model.zero_grad()
    metrics = replay.backward(lm, algorithm, iter(parts), algorithm.advantages(batch), context, ref=ref, micro_rows=2)
    assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-12)
    for name, parameter in lm.model.named_parameters():
        if name in direct:
            torch.testing.assert_close(parameter.grad, direct[name], rtol=1e-8, atol=1e-12)
    lm.model.zero_grad()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"beta": 0}, "beta: 0; allowed"),
        ({"draws": 6, "masks_per_count": 4}, "masks_per_count: 4; allowed: a divisor of draws"),
        ({"draws": 0}, "draws: 0; allowed"),
        ({"elbo_norm": "mean"}, "elbo_norm: 'mean'; allowed"),
        ({"sft_weight": -1}, "sft_weight: -1; allowed"),
    ],
)
def test_wrong_options_are_refused(options, said):
    for config in (VRPOConfig, DPOConfig):
        with pytest.raises(ValueError, match=said):
            config(**options)


@pytest.mark.parametrize("name", ["vrpo", "dpo"])
def test_presets_build(name):
    entry = registry.get(name, "llada")
    assert {"paper", "dare"} <= set(entry.presets)
    assert {"dream", "llada", "sdar", "llada2_moe"} <= entry.families
    for preset in entry.presets.values():
        assert entry.cls(entry.config_class(**preset)).name == name
    assert "autoregressive" in registry.get("dpo", "autoregressive").families
