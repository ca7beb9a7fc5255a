"""Rewards of training by rollouts: one file each, found by name; TRL's signature, the graders of the tables."""

from dare_bench.suites.rewards.base import Options, Reward
from dare_bench.suites.rewards.building import Choice, make, misfit, reward_functions, training_functions
from dare_bench.suites.rewards.registry import get, names, reward, rewards

__all__ = [
    "Choice",
    "Options",
    "Reward",
    "get",
    "make",
    "misfit",
    "names",
    "reward",
    "reward_functions",
    "rewards",
    "training_functions",
]
