"""MDPO: step advantages, selection of steps, weights of a step, and what its loss reduces to."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Context, Steps, Trace
from dare_bench.dare.algorithms.mdpo import MDPO, MDPOConfig, step_advantages
from dare_bench.dare.algorithms.objectives import ppo_token_loss
from dare_bench.dare.diffusion.block import concatenate
from dare_bench.dare.families.registry import UnknownName


@pytest.fixture
def stepped(make_batch):
    """Four responses of one group with the given step rewards; at step t the last 6 - t places are masked."""

    def make(rewards, groups=(0, 0, 0, 0)):
        rewards = torch.tensor(rewards, dtype=torch.float64)
        count, steps = rewards.shape
        batch = make_batch([3] * count, [6] * count, rewards=rewards[:, -1].tolist(), groups=list(groups))
        masked = torch.arange(9) >= 3 + torch.arange(steps)[:, None]
        inputs = torch.where(masked, batch.mask_token_id, batch.ids[:, None])
        guesses = torch.where(masked, (batch.ids[:, None] * 7 + torch.arange(steps)[:, None]) % 60, batch.ids[:, None])
        confidence = torch.where(masked, 0.25 + batch.ids[:, None] / 100, 0.0)
        batch.trace = Trace(torch.full_like(batch.ids, -1), Steps(inputs, guesses, confidence, rewards))
        return batch

    return make


def loss_of(algorithm, batch, *, old_shift=0.0):
    rows = concatenate(list(algorithm.rows(batch, Context(0, batch=batch))))
    new = torch.where(rows.mask, -1.0 - 0.1 * rows.targets[..., 0].double().sin(), 0.0)[..., None].requires_grad_()
    old = new.detach() - old_shift * rows.mask[..., None]
    loss, metrics = algorithm.loss(new, old, new.detach(), rows, algorithm.advantages(batch), Context(0, batch=batch))
    return rows, new, loss, metrics


def test_raw_advantages_by_hand():
    found = step_advantages(torch.tensor([[0.0, 1.0, 0.5]], dtype=torch.float64))
    # gain + 1 + mean of the later ones (the last: its own)
    assert found.tolist() == [[0 + 1 + 0.75, 1 + 1 + 0.5, -0.5 + 1 + 0.5]]
    assert step_advantages(torch.tensor([[0.25]])).tolist() == [[1.5]]


def test_equal_rewards_give_no_advantage_and_no_gradient(stepped):
    batch = stepped([[0.0, 1.0, 0.3]] * 4)
    algorithm = MDPO(MDPOConfig(group_size=4))
    assert not algorithm.advantages(batch).any()
    _, new, loss, _ = loss_of(algorithm, batch)
    assert loss == 0
    assert not torch.autograd.grad(loss, new)[0].any()


def test_a_constant_for_all_steps_changes_nothing(stepped):
    rewards = torch.rand(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    one, two = (MDPO().advantages(stepped((rewards + shift).tolist())) for shift in (0.0, 3.0))
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_the_step_that_turns_right_is_preferred(stepped):
    found = MDPO().advantages(stepped([[0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]] * 2))
    assert found[0, 2] > 0 > found[1, 2]


def test_groups_are_normalised_and_selected_by_themselves(stepped):
    rewards = torch.rand(8, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    algorithm = MDPO(MDPOConfig(kept_steps=2))
    mixed = stepped(rewards.tolist(), groups=[0, 1] * 4)
    for group in (0, 1):
        alone = stepped(rewards[group::2].tolist())
        torch.testing.assert_close(algorithm.advantages(mixed)[group::2], algorithm.advantages(alone))
        assert torch.equal(algorithm.selected(mixed)[group::2], algorithm.selected(alone))


@pytest.mark.parametrize("kept", [1, 3, 5, 9])
def test_the_kept_steps_are_those_of_largest_advantage(stepped, kept):
    rewards = torch.rand(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    batch, algorithm = stepped(rewards.tolist()), MDPO(MDPOConfig(kept_steps=kept))
    sums = algorithm.advantages(batch).abs().sum(0).tolist()
    wanted = sorted(sorted(range(5), key=lambda step: -sums[step])[:kept])
    assert algorithm.selected(batch)[0].tolist() == wanted
    rows = concatenate(list(algorithm.rows(batch, Context(0))))
    assert sorted(set(rows.draw.tolist())) == wanted
    assert len(rows) == 4 * min(kept, 5)


def test_rows_hold_the_states_and_guesses_of_their_step(stepped):
    batch = stepped(torch.rand(4, 5, generator=torch.Generator().manual_seed(3)).tolist())
    for rows in MDPO(MDPOConfig(temperature=0.5)).rows(batch, Context(0)):
        steps = batch.trace.steps
        assert torch.equal(rows.ids, steps.inputs[rows.owner, rows.draw])
        assert torch.equal(rows.targets[..., 0], steps.guesses[rows.owner, rows.draw])
        assert torch.equal(rows.mask, rows.ids == batch.mask_token_id)
        assert rows.temperature == pytest.approx(0.5, abs=1e-6)
    (rows, *_) = MDPO(MDPOConfig(temperature=0.5, scored_at="one")).rows(batch, Context(0))
    assert rows.temperature == 1.0


def test_committed_places_have_no_gradient(stepped):
    batch = stepped(torch.rand(4, 5, generator=torch.Generator().manual_seed(4)).tolist())
    rows, new, loss, _ = loss_of(MDPO(MDPOConfig(beta=0.1)), batch, old_shift=0.1)
    (gradient,) = torch.autograd.grad(loss, new)
    assert gradient[rows.mask].all()
    assert not gradient[~rows.mask].any()


def test_without_its_weights_a_step_is_plain_grpo(stepped):
    """Confidence 1 and a canvas of masks alone (lambda 1)."""
    batch = stepped([[0.0], [1.0], [0.5], [0.0]])
    batch.trace.steps.confidence = (batch.trace.steps.confidence > 0).double()
    algorithm = MDPO(MDPOConfig(lambda_floor="one", kept_steps=1))
    rows, new, loss, _ = loss_of(algorithm, batch, old_shift=0.3)
    old, advantages = new.detach()[..., 0] - 0.3, algorithm.advantages(batch)[:, 0]
    tokens = ppo_token_loss(new[..., 0], old, advantages[rows.owner][:, None], eps_low=0.2)
    assert loss.item() == pytest.approx(tokens[rows.mask].mean().item(), rel=1e-5)


@pytest.mark.parametrize("temperature", [0.1, 0.4, 1.0, 1.7])
def test_the_ratio_is_one_at_any_temperature(stepped, temperature):
    batch = stepped(torch.rand(4, 5, generator=torch.Generator().manual_seed(4)).tolist())
    metrics = loss_of(MDPO(MDPOConfig(temperature=temperature)), batch)[3]
    assert metrics["ratio_mean"] == 1.0
    assert metrics["clip_fraction"] == 0.0


def test_lambda_weighs_the_policy_term_alone(stepped):
    batch = stepped([[0.5] * 5] * 4)  # no advantage: what is left is the KL
    algorithm = MDPO(MDPOConfig(beta=1.0, kept_steps=1))
    rows = concatenate(list(algorithm.rows(batch, Context(0))))
    new = torch.where(rows.mask, -1.0, 0.0)[..., None].double()
    ref = torch.where(rows.mask, -3.0, 0.0)[..., None].double()
    loss, _ = algorithm.loss(new, new, ref, rows, algorithm.advantages(batch), Context(0, batch=batch))
    steps = batch.trace.steps
    confidence = steps.confidence[rows.owner, rows.draw][rows.mask].mean().item()
    assert loss.item() == pytest.approx(2.0 * confidence, rel=1e-4)


def test_the_first_place_may_be_left_out(stepped):
    batch = stepped([[0.0], [1.0], [0.5], [0.0]])
    whole, without = (next(iter(MDPO(MDPOConfig(drop_first_dream=drop)).rows(batch, Context(0)))) for drop in (0, 1))
    assert (whole.mask & ~without.mask).nonzero()[:, 1].tolist() == [3] * 4
    algorithm, owner = MDPO(MDPOConfig(drop_first_dream=True)), torch.arange(4)
    assert algorithm.scale(batch, owner, owner * 0).tolist() == pytest.approx([6 / 6.0001] * 4)


def test_settings_are_checked():
    for fields, said in [
        ({"kept_steps": 0}, "kept_steps: 0; allowed: at least 1"),
        ({"scored_at": "two"}, "scored_at: 'two'; allowed: rollout, one"),
        ({"lambda_floor": "no"}, "lambda_floor: 'no'; allowed: added, one"),
        ({"temperature": 0.0}, "temperature: 0.0; allowed: positive"),
        ({"group_size": 1}, "advantage: 'std' with group_size 1"),
    ]:
        with pytest.raises(ValueError, match=said):
            MDPOConfig(**fields)


def test_a_batch_without_steps_is_refused(make_batch):
    with pytest.raises(ValueError, match="trace: no denoising steps; mdpo"):
        MDPO().advantages(make_batch([2], [3], rewards=[1.0]))


def test_registered():
    entry = registry.get("mdpo", "dream")
    assert entry.families == {"dream", "llada", "llada_moe"}
    assert entry.needs.trace == "states"
    assert set(entry.presets) == {"paper", "repo", "dare"}
    for preset in entry.presets.values():
        entry.config_class(**preset)
    assert MDPO(MDPOConfig()).needs.ref == "none"
    assert MDPO(MDPOConfig(**entry.presets["repo"])).needs.ref == "frozen"
    with pytest.raises(UnknownName, match="family of mdpo 'sdar'"):
        registry.get("mdpo", "sdar")
