"""group_advantages: eight published ways to turn rewards into advantages."""

from __future__ import annotations

from collections.abc import Iterator

from dare_bench.dare.algorithms.advantages import group_advantages
from dare_bench.dare.conformance.algorithms import _graded
from dare_bench.dare.conformance.fixture import Compared, Fixture

#: First words of a recorded name -> kind and what is added to the standard deviation.
_KINDS = {
    "grpo_std": ("std", 1e-6),
    "mean_only": ("mean", 0.0),
    "leave_one_out": ("loo", 0.0),
    "justgrpo": ("std", 1e-4),
    "tracerl": ("zpop", 0.0),
}
NOT_COMPARED = {
    "advantages.reinforce++_baseline (verl)": "divides by the deviation of the whole batch; no algorithm here does",
    "advantages.singleton group (verl grpo_std)": "the raw reward; groups of one are refused here",
    "advantages.espo leave_one_out then /(std+1e-4) (scale_rewards=true)": "compared by its algorithm's options only",
}


def cases(data: Fixture) -> Iterator[Compared]:
    """Every kind that algorithms here offer."""
    rewards, groups = data.tensor("rewards"), _graded.group_index(data["groups"])
    recorded = data["advantages"]
    for name in recorded:
        if f"advantages.{name}" not in NOT_COMPARED:
            kind, delta = _KINDS[name.split()[0]]
            yield Compared(name, recorded[name], group_advantages(rewards, groups, kind, delta=delta))
