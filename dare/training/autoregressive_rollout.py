"""Rollouts of autoregressive models for TRL: sampled by this project's engine, graded with the examples' own columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dare_bench.dare.decoding.autoregressive import generate
from dare_bench.dare.randomness import stream_seed
from dare_bench.dare.training.autoregressive_run import Job
from dare_bench.dare.training.grading import columns_of

#: Rows of one decoding batch; never changes a result.
BATCH_SIZE = 128


class Rollouts:
    """TRL's `rollout_func`: prompts of one rollout batch, groups adjacent -> prompt and response ids.

    Args:
        job: of the run.
        options: group_size, temperature, beta, inner_iterations of the algorithm.
    """

    def __init__(self, job: Job, options: Any) -> None:
        self.job, self.options = job, options
        self.decoder = replace(job.decoder, temperature=float(options.temperature), early_stop=True)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Sample the responses of the current cycle."""
        job, group = self.job, self.options.group_size
        cycle = job.run.step // job.inner
        picked = [(index, slot) for slot, index in enumerate(job.picks(cycle))]
        rows = [(job.encoded[index], slot, member) for index, slot in picked for member in range(group)]
        if len(rows) != len(prompts):
            raise ValueError(f"TRL asks for {len(prompts)} responses, the step has {len(rows)}")
        # The seeds of the diffusion rollouts: run, cycle, example and its slot, place in the group.
        seeds = [stream_seed(job.seed, "rollout", cycle, f"{row.id}#{slot}", member) for row, slot, member in rows]
        job.lm.eval()
        found = generate(job.lm, [row.prompt for row, _, _ in rows], self.decoder, seeds, batch_size=BATCH_SIZE)
        job.lm.train()
        tokens = sum(one.cost.tokens_committed for one in found)
        job.run.add(
            rollout_tokens=tokens,
            rollout_nfe=sum(one.cost.nfe for one in found),
            rollout_flops=sum(one.cost.flops for one in found),
        )
        # Scored once per rollout: by the reference, and by the policy that made it when several steps use it.
        passes = int(self.options.beta > 0) + int(self.options.inner_iterations > 1)
        job.count_scored(passes * (tokens + sum(len(row.prompt) for row, _, _ in rows)))
        return {
            "prompt_ids": [list(row.prompt) for row, _, _ in rows],
            "completion_ids": [one.token_ids for one in found],
            "logprobs": None,
        }


def grader(job: Job, function: Callable[..., Any]) -> Callable[..., Any]:
    """A reward function as TRL calls it: it gets prompts and columns of the examples as they were given.

    Args:
        job: of the run.
        function: ``(prompts, completions, **columns) -> list[float | None]``.
    """

    def reward(prompts: Sequence[Any], completions: Sequence[Any], row: Sequence[int], **ignored: Any) -> Any:
        own = [job.encoded[index].columns for index in row]
        limit = int(job.decoder.gen_length or 0)
        columns = columns_of(own, [limit - len(ids) for ids in ignored.get("completion_ids", [[]] * len(row))])
        return function(prompts=[job.examples[index]["prompt"] for index in row], completions=completions, **columns)

    reward.__name__ = getattr(function, "__name__", "reward")
    return reward
