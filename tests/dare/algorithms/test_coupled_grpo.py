"""Coupled-GRPO: the pair partitions the response, the combined value is unbiased, coupling lowers its variance."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.coupled_grpo import CoupledConfig, CoupledGRPO
from dare_bench.dare.diffusion.block import concatenate
from dare_bench.dare.training.replay import score

MASK = 63
PROMPTS, RESPONSES, COUNTED = [3, 5, 4, 6], [8, 5, 6, 7], [8, 2, 6, 5]


def parts_of(batch, config=None, **context):
    return list(CoupledGRPO(config).rows(batch, Context(**({"run_seed": 0} | context))))


def hidden(rows):
    """Places that the network reads as masks, by response."""
    return [set(rows.position_ids[n][(rows.ids[n] == MASK) & rows.real[n]].tolist()) for n in range(len(rows))]


@pytest.fixture(params=[0, 4], ids=["full", "blocks"])
def batch(request, make_batch):
    return make_batch(PROMPTS, RESPONSES, counted=COUNTED, block_length=request.param, groups=[0, 0, 1, 1],
                      rewards=[1.0, 0.0, 0.5, 0.25])  # fmt: skip


def test_a_pair_partitions_the_response_and_leaves_the_prompt(batch):
    full, first, second = parts_of(batch)
    for row in range(4):
        response = set(range(PROMPTS[row], PROMPTS[row] + RESPONSES[row]))
        one, two = hidden(first)[row], hidden(second)[row]
        assert hidden(full)[row] == one | two == response
        assert not one & two


@pytest.mark.parametrize("pairs", [1, 3])
def test_every_counted_token_is_scored_once_per_pair_and_once_fully_masked(batch, pairs):
    rows = concatenate(parts_of(batch, CoupledConfig(pairs=pairs)))
    seen = torch.zeros(batch.ids.shape)
    for n in range(len(rows)):
        seen[int(rows.owner[n])].index_add_(0, rows.position_ids[n][rows.mask[n]], torch.ones(int(rows.mask[n].sum())))
    assert torch.equal(seen, (1 + pairs) * batch.counted.float())
    assert sorted(set(rows.draw.tolist())) == list(range(1 + 2 * pairs))


def test_equal_scores_give_the_weights_by_hand(batch):
    """Half of (1 + 1/t) where the first mask hides a token, half of (1 + 1/(1-t)) elsewhere; 1.5 at t = 1/2."""
    for low, high in ((0.25, 0.25), (0.5, 0.5)):
        algorithm = CoupledGRPO(CoupledConfig(t_low=low, t_high=high))
        full, first, second = algorithm.rows(batch, Context(0))
        rows = concatenate([full, first, second])
        value = algorithm.surrogate(torch.where(rows.mask, -2.0, 0.0).double()[..., None], rows, 4)
        for row, places in enumerate(hidden(first)):
            for place in batch.counted[row].nonzero()[:, 0].tolist():
                t = low if place in places else 1 - low
                assert float(value[row, place]) == pytest.approx(-2.0 * 0.5 * (1 + 1 / t))
        width = value.shape[1]
        assert not value[~batch.counted[:, :width]].any()


def test_the_level_is_one_per_batch_and_inner_iteration(batch):
    algorithm = CoupledGRPO()
    levels = [algorithm.level(Context(0, step=step, inner=inner), 0) for step in range(20) for inner in range(10)]
    assert len(set(levels)) == 200
    assert 0.2 < min(levels) < 0.25
    assert 0.75 < max(levels) < 0.8
    assert sum(levels) / 200 == pytest.approx(0.5, abs=0.05)
    rows = parts_of(batch)[1]
    assert len(set(rows.weight[rows.mask].tolist())) == 1


def test_the_value_is_unbiased(make_batch):
    """Scores that do not depend on the context: the mean over masks is half of (1 + 2) times the score."""
    batch = make_batch([2] * 20_000, [3] * 20_000)
    score = torch.tensor([-0.5, -1.0, -2.0])
    rows = concatenate(parts_of(batch, CoupledConfig(t_low=0.3, t_high=0.3)))
    logp = torch.cat([torch.zeros(2), score]).expand(len(rows), -1) * rows.mask
    value = CoupledGRPO().surrogate(logp.double()[..., None], rows, 20_000)[:, 2:]
    spread = value.std(0) / 20_000**0.5
    assert ((value.mean(0) - 1.5 * score).abs() < 4 * spread).all()


def test_coupling_lowers_the_variance(make_batch):
    count = 20_000
    batch = make_batch([1] * count, [6] * count)
    score = -torch.rand(6, generator=torch.Generator().manual_seed(0)).double() * 3
    config = CoupledConfig(t_low=0.4, t_high=0.4)
    (_, first, second), (_, _, other) = (parts_of(batch, config, inner=inner) for inner in (0, 1))

    def total(rows):
        return (rows.weight * rows.mask)[:, 1:] @ score

    coupled, independent = (total(first) + total(rest) for rest in (second, other))
    assert float(coupled.mean()) == pytest.approx(float(independent.mean()), rel=0.05)
    assert float(coupled.var()) < 0.8 * float(independent.var())


def test_swapping_the_halves_changes_nothing(batch, tiny):
    lm = tiny("sdar" if batch.block_length else "llada")
    full, first, second = parts_of(batch, CoupledConfig(t_low=0.3, t_high=0.3))
    algorithm, context = CoupledGRPO(), Context(0, batch=batch)
    values = []
    for parts in ([full, first, second], [full, second, first]):
        rows = concatenate(parts)
        with torch.no_grad():
            new = score(lm, rows)
        loss, _ = algorithm.loss(
            new, new - 0.1 * rows.mask[..., None], None, rows, algorithm.advantages(batch), context
        )
        values.append(float(loss))
    assert values[0] == pytest.approx(values[1], abs=1e-12)
    assert values[0] != 0


def test_at_the_first_inner_step_the_loss_is_that_of_reinforce(batch, tiny):
    lm = tiny("sdar" if batch.block_length else "llada")
    algorithm = CoupledGRPO(CoupledConfig(beta=0.5))
    rows = concatenate(parts_of(batch))
    with torch.no_grad():
        new = score(lm, rows)
    advantages = algorithm.advantages(batch)
    loss, metrics = algorithm.loss(new, new, new, rows, advantages, Context(0, batch=batch))
    counted = torch.tensor(COUNTED).double()
    assert float(loss) == pytest.approx(float(-(advantages * counted).sum() / counted.sum()), abs=1e-9)
    assert metrics["kl"] == 0.0
    assert metrics["ratio_mean"] == 1.0


def test_without_pairs_it_is_d1_without_prompt_masks(batch, tiny):
    from dare_bench.dare.algorithms.d1 import D1, D1Config

    lm = tiny("sdar" if batch.block_length else "llada")
    config = {"group_size": 2, "eps_low": 0.2}
    losses = []
    for algorithm in (CoupledGRPO(CoupledConfig(pairs=0, **config)), D1(D1Config(prompt_mask=0.0, **config))):
        (rows,) = algorithm.rows(batch, Context(0))
        with torch.no_grad():
            new = score(lm, rows)
        old = new - 0.05 * rows.mask[..., None] * rows.position_ids[..., None]
        losses.append(
            float(algorithm.loss(new, old, None, rows, algorithm.advantages(batch), Context(0, batch=batch))[0])
        )
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)


@pytest.mark.parametrize(
    "options", [{"t_low": 0.0}, {"t_low": 0.9}, {"t_high": 1.0}, {"pairs": -1}, {"aggregation": "sum"}]
)
def test_refused_options(options):
    name = "t_low" if "t_high" in options else next(iter(options))
    with pytest.raises(ValueError, match=rf"{name}: .*allowed"):
        CoupledConfig(**options)


def test_presets():
    entry = registry.get("coupled_grpo")
    configs = {name: entry.config_class(**options) for name, options in entry.presets.items()}
    assert {name: config.advantage for name, config in configs.items()} == {
        "paper": "mean",
        "repo": "loo",
        "dare": "std",
    }
    assert (configs["repo"].beta, configs["repo"].eps_low, configs["repo"].inner_iterations) == (0.01, 0.5, 2)
    assert (configs["dare"].dual_clip, configs["dare"].counted, configs["dare"].inner_iterations) == (3.0, "canvas", 1)
