"""Advantages and returns over steps against a loop over steps and tokens."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.algorithms import values
from hypothesis import given, settings
from hypothesis import strategies as st

STEPS = torch.tensor([[1, 0, 2, 1, -1, 2], [0, 0, 0, -1, -1, -1], [-1, 3, 2, 1, 0, 0]])


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, 6, generator=generator, dtype=torch.float64).unbind(0)


def by_loop(rewards, value, steps, gamma, lam):
    """The definition, one response at a time."""
    count = max(steps) + 1
    own = [[place for place, when in enumerate(steps) if when == step] for step in range(count)]
    mean = [[sum(values[place] for place in places) / len(places) for places in own] for values in (rewards, value)]
    ahead, later = [0.0] * (count + 1), [0.0] * (count + 1)
    following = [*mean[1], 0.0]
    for step in reversed(range(count)):
        delta = mean[0][step] - mean[1][step] + gamma * following[step + 1]
        ahead[step] = delta + gamma * lam * ahead[step + 1]
        later[step] = mean[0][step] + gamma * later[step + 1]
    advantage, returns = [0.0] * len(steps), [0.0] * len(steps)
    for place, when in enumerate(steps):
        if when >= 0:
            tail = gamma * following[when + 1] + gamma * lam * ahead[when + 1]
            advantage[place] = rewards[place] - value[place] + tail
            returns[place] = rewards[place] + gamma * later[when + 1]
    return advantage, returns


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.floats(0, 1), st.floats(0, 1))
def test_equals_the_definition(seed, gamma, lam):
    rewards, value = drawn(seed)
    found = values.token_advantages(rewards, value, STEPS, gamma=gamma, lam=lam)
    for row in range(3):
        wanted = by_loop(rewards[row].tolist(), value[row].tolist(), STEPS[row].tolist(), gamma, lam)
        assert found[0][row].tolist() == pytest.approx(wanted[0])
        assert found[1][row].tolist() == pytest.approx(wanted[1])


def test_undiscounted_advantages_are_reward_minus_value():
    value = drawn(3)[1]
    reward = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    rewards = values.token_rewards(reward, STEPS)
    assert (rewards != 0).sum(1).tolist() == [2, 3, 1]
    advantage, returns = values.token_advantages(rewards, value, STEPS)
    known = STEPS >= 0
    torch.testing.assert_close(advantage, torch.where(known, reward[:, None] - value, 0.0))
    torch.testing.assert_close(returns, torch.where(known, reward[:, None], 0.0).double())


def test_step_means():
    means, counts = values.step_means(torch.arange(18.0).view(3, 6), STEPS)
    assert counts.tolist() == [[1, 2, 2, 0], [3, 0, 0, 0], [2, 1, 1, 1]]
    assert means.tolist() == [[1.0, 1.5, 3.5, 0.0], [7.0, 0.0, 0.0, 0.0], [16.5, 15.0, 14.0, 13.0]]


def test_value_loss_takes_the_larger_error():
    value = torch.tensor([[1.0, 0.0, 5.0]], requires_grad=True)
    old, returns = torch.tensor([[0.0, 0.1, 0.0]]), torch.tensor([[1.0, 1.0, 9.0]])
    counted = torch.tensor([[True, True, False]])
    loss = values.value_loss(value, old, returns, counted, eps=0.2, length=4)
    assert float(loss.detach()) == pytest.approx(0.5 * (0.8**2 + 1.0) / 4)
    loss.backward()
    assert value.grad.tolist() == [[0.0, pytest.approx(-0.25), 0.0]]  # the first lies beyond the clip
    assert float(values.value_loss(value.detach(), old, returns, counted & False, eps=0.2, length=4)) == 0.0
