"""Rollouts: sample groups of responses from the policy, grade them, and make a batch of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from dare_bench.dare.algorithms.base import Batch, Trace
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.decoding.generation import NEVER, Generation
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed
from dare_bench.dare.training.data import Encoded, collate

#: TRL's signature: (prompts, completions, **columns) -> one float per completion.
RewardFunction = Callable[..., Sequence[float | None]]


@dataclass
class Rollout:
    """Responses of one rollout batch.

    Attributes:
        batch: prompts + responses with rewards and groups, rows of a group adjacent.
        generations: decoder records, in row order.
        metrics: means over the batch (reward, per-function rewards, length, NFE).
        tokens: committed response tokens.
        nfe: forward passes, summed over rows.
        flops: decoding FLOPs.
    """

    batch: Batch
    generations: list[Generation]
    metrics: dict[str, float]
    tokens: int
    nfe: int
    flops: float


def rollout(
    lm: DiffusionLM,
    prompts: Sequence[Encoded],
    messages: Sequence[Sequence[dict[str, str]]],
    decoder: DecoderConfig,
    *,
    group_size: int,
    seed: int,
    step: int,
    reward_funcs: Sequence[RewardFunction],
    reward_weights: Sequence[float] | None = None,
    batch_size: int = 128,
) -> Rollout:
    """Sample `group_size` responses per prompt and grade them.

    Args:
        lm: policy, in evaluation mode.
        prompts: tokenised prompts.
        messages: the same prompts as chat messages, for the reward functions.
        decoder: rollout decoder with gen_length and temperature.
        group_size: G.
        seed, step: seed every draw together with the sample id and its place in the group.
        reward_funcs: graders; a None is left out of the weighted sum and of the function's mean. One that has `shares`
            (rule that decided -> share of the batch) has them among the metrics.
        reward_weights: default 1 each.
        batch_size: rows per decoding batch.

    Returns:
        The rollout; responses include everything up to and including the first stop token.
    """
    rows = [prompt for prompt in prompts for _ in range(group_size)]
    seeds = [
        stream_seed(seed, "rollout", step, prompt.id, member) for prompt in prompts for member in range(group_size)
    ]
    lm.eval()
    generations = generate(lm, [row.prompt for row in rows], decoder, seeds, batch_size=batch_size)
    responses = [_through_stop(generation) for generation in generations]
    texts = [lm.decode(generation.text_ids) for generation in generations]
    repeated = [conversation for conversation in messages for _ in range(group_size)]
    # The benchmarks of a mixed run have unlike columns.
    names = dict.fromkeys(name for row in rows for name in row.columns)
    columns = {name: [row.columns.get(name) for row in rows] for name in names}
    columns["tokens_left"] = [int(decoder.gen_length or 0) - len(response) for response in responses]
    weights = list(reward_weights) if reward_weights is not None else [1.0] * len(reward_funcs)
    total = torch.zeros(len(rows))
    metrics: dict[str, float] = {}
    for function, weight in zip(reward_funcs, weights, strict=True):
        completions = [[{"role": "assistant", "content": text}] for text in texts]
        given = function(prompts=repeated, completions=completions, **columns)
        values = torch.tensor([0.0 if value is None else float(value) for value in given])
        total += weight * values
        label = f"reward/{getattr(function, '__name__', 'reward')}"
        graded = [float(value) for value in given if value is not None]
        metrics[label] = sum(graded) / len(graded) if graded else 0.0
        metrics |= {f"{label}/{rule}": share for rule, share in getattr(function, "shares", {}).items()}
    batch = _batch(lm, rows, generations, group_size, total, int(decoder.gen_length or 0))
    groups = total.view(-1, group_size)
    metrics |= {
        "reward": float(total.mean()),
        "zero_variance_groups": float((groups.max(1).values == groups.min(1).values).float().mean()),
        "response_tokens": sum(len(response) for response in responses) / len(responses),
        "rollout_nfe": sum(generation.cost.nfe for generation in generations) / len(generations),
    }
    return Rollout(
        batch=batch,
        generations=generations,
        metrics=metrics,
        tokens=sum(generation.cost.tokens_committed for generation in generations),
        nfe=sum(generation.cost.nfe for generation in generations),
        flops=sum(generation.cost.flops for generation in generations),
    )


def _through_stop(generation: Generation) -> list[int]:
    end = len(generation.text_ids) + (1 if generation.finish_reason == "stop" else 0)
    return generation.token_ids[:end]


def _batch(
    lm: DiffusionLM,
    rows: Sequence[Encoded],
    generations: Sequence[Generation],
    group_size: int,
    rewards: torch.Tensor,
    gen_length: int,
) -> Batch:
    """Collate what was decoded, behind the first stop token too; only positions through that token are counted.

    Under full attention every row gets `gen_length` places behind its prompt, as it had while it was decoded: a
    surrogate that masks them all then depends on the row alone, not on the longest response of the batch. Block families
    keep the whole last block. Places that were never decoded hold the padding token.
    """
    width = 0 if lm.is_block_causal else gen_length
    filled = [
        replace(row, response=[*(token if step != NEVER else lm.pad_token_id for token, step in _decoded(generation)),
                               *[lm.pad_token_id] * (width - len(generation.token_ids))])
        for row, generation in zip(rows, generations, strict=True)
    ]  # fmt: skip
    batch = collate(lm, filled, uids=[row.id for row in rows])
    if not lm.is_block_causal:
        batch.lengths = batch.prompt_lengths + gen_length
    ends = batch.prompt_lengths + torch.tensor([len(_through_stop(generation)) for generation in generations])
    columns = torch.arange(batch.ids.shape[1])
    batch.counted = batch.counted & (columns < ends[:, None])
    batch.groups = torch.arange(len(rows)) // group_size
    batch.rewards = rewards
    step_map = torch.full(batch.ids.shape, NEVER)
    for index, generation in enumerate(generations):
        begin = int(batch.prompt_lengths[index])
        steps = torch.tensor(generation.step_map)
        # Fill behind an end token was not chosen by the network: no step of the trajectory has it as its target.
        step_map[index, begin : begin + len(steps)] = torch.where(steps < 0, NEVER, steps)
    batch.trace = Trace(step_map)
    return batch


def _decoded(generation: Generation) -> list[tuple[int, int]]:
    return list(zip(generation.token_ids, generation.step_map, strict=True))
