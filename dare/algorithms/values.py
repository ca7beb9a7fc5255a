"""Advantages, returns and loss of a value model over the steps of a trajectory (TraceRL, arXiv 2509.06949)."""

from __future__ import annotations

import torch
from torch import Tensor


def step_means(values: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Means over the tokens of each step.

    Args:
        values: float [B, S].
        steps: int64 [B, S], numbered densely from 0 within a row; negative = no token.

    Returns:
        float [B, T] and the number of tokens of each step, int64 [B, T]; 0 where a row has no such step.
    """
    width = int(steps.max().clamp(min=-1)) + 1
    row, column = (steps >= 0).nonzero(as_tuple=True)
    place = row * width + steps[row, column]
    sums = values.new_zeros(len(steps) * width).index_add(0, place, values[row, column])
    counts = place.bincount(minlength=len(steps) * width)
    return (sums / counts.clamp(min=1)).view(len(steps), width), counts.view(len(steps), width)


def token_rewards(rewards: Tensor, steps: Tensor) -> Tensor:
    """The reward of a response at every token of its last step, 0 elsewhere, float [B, S].

    Args:
        rewards: float [B].
        steps: int64 [B, S], as in `step_means`.
    """
    last = steps.max(1, keepdim=True).values
    return torch.where((steps == last) & (steps >= 0), rewards[:, None], torch.zeros_like(rewards)[:, None])


def token_advantages(
    rewards: Tensor, values: Tensor, steps: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantages over steps, and returns, per token.

    With r*, V* the means over a step's tokens: delta_t = r*_t - V*_t + gamma V*_{t+1}, A*_t = delta_t + gamma lam A*_{t+1};
    for a token j of step t: A_j = (r_j - V_j) + gamma V*_{t+1} + gamma lam A*_{t+1} and R_j = r_j + gamma R*_{t+1}.

    Args:
        rewards, values: float [B, S], per token.
        steps: int64 [B, S], as in `step_means`.
        gamma, lam: discount of the next step, decay of later errors.

    Returns:
        Advantages and returns, float [B, S], 0 where no step committed the token.

    Source:
        Gen-Verse/dLLM-RL, value model of TraceRL.
    """
    reward, _ = step_means(rewards, steps)
    value, _ = step_means(values, steps)
    count, width = value.shape
    # Entry t + 1 holds what follows step t; the last one nothing. Steps that a row does not have are 0 and add 0.
    ahead, later = value.new_zeros(count, width + 1), value.new_zeros(count, width + 1)
    for step in reversed(range(width)):
        following = value[:, step + 1] if step + 1 < width else torch.zeros_like(value[:, step])
        delta = reward[:, step] - value[:, step] + gamma * following
        ahead[:, step] = delta + gamma * lam * ahead[:, step + 1]
        later[:, step] = reward[:, step] + gamma * later[:, step + 1]
    following = torch.cat([value, value.new_zeros(count, 1)], 1)
    after = steps.clamp(min=-1) + 1
    advantage = rewards - values + gamma * following.gather(1, after) + gamma * lam * ahead.gather(1, after)
    returns = rewards + gamma * later.gather(1, after)
    known = steps >= 0
    return torch.where(known, advantage, 0.0), torch.where(known, returns, 0.0)


def value_loss(values: Tensor, old: Tensor, returns: Tensor, counted: Tensor, *, eps: float, length: int) -> Tensor:
    """Half the larger squared error of the value and of the value kept near its old one: row sums / length, their mean.

    Args:
        values, old, returns: float [N, S].
        counted: bool [N, S].
        eps: how far the clipped value may lie from the old one.
        length: divisor of a row's sum.
    """
    near = old + (values - old).clamp(-eps, eps)
    worse = torch.maximum((values - returns).square(), (near - returns).square())
    return 0.5 * torch.where(counted, worse, 0.0).sum(1).mean() / length
