"""Rollouts: sample groups of responses from the policy, grade them, and make a batch of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from dare_bench.dare.algorithms.base import Batch, Trace
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.decoding.generation import NEVER, Generation
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed
from dare_bench.dare.training import sharding
from dare_bench.dare.training.data import Encoded, collate
from dare_bench.dare.training.grading import RewardFunction, Verdict, columns_of, combine, grade
from dare_bench.dare.training.world import ALONE, World

#: Samples the responses of prompts; `_sample` in process, or a `RemoteSampler`.
Sampler = Callable[..., list[list[Generation]]]


@dataclass
class Rollout:
    """Responses of one rollout batch.

    Attributes:
        batch: prompts + responses with rewards and groups, rows of a group adjacent.
        generations: decoder records, in row order.
        metrics: means over the batch (reward, per-function rewards, length, NFE where it is known).
        tokens: committed response tokens.
        nfe: forward passes, summed over rows; 0 for those of a server that does not tell.
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
    world: World = ALONE,
    sampler: Sampler | None = None,
) -> Rollout:
    """Sample `group_size` responses per prompt and grade them.

    Args:
        lm: policy, in evaluation mode.
        prompts: tokenised prompts.
        messages: the same prompts as chat messages, for the reward functions.
        decoder: rollout decoder with gen_length and temperature.
        group_size: G.
        seed, step: seed every draw together with the sample id and its place in the group.
        reward_funcs: graders; a None is left out of the weighted sum and of the function's mean. The rules that
            decided are among the metrics, see `grading`.
        reward_weights: default 1 each.
        batch_size: rows per decoding batch.
        world: processes that divide the prompts; each gets all responses.
        sampler: samples instead of `lm`, in every process.

    Returns:
        The rollout; responses include everything up to and including the first stop token.
    """
    mine = range(world.rank, len(prompts), world.size)
    with sharding.gathered(lm) if sampler is None else nullcontext():
        groups = (sampler or _sample)(
            lm, [prompts[index] for index in mine], decoder, group_size=group_size, seed=seed, step=step,
            batch_size=batch_size,
        )  # fmt: skip
    graded = grade_groups(
        lm, groups, [prompts[index] for index in mine], [messages[index] for index in mine], reward_funcs,
        int(decoder.gen_length or 0),
    )  # fmt: skip
    return assemble(
        lm, prompts, world.interleave(groups, len(prompts)), world.interleave(graded, len(prompts)), reward_funcs,
        reward_weights, int(decoder.gen_length or 0),
    )  # fmt: skip


def assemble(
    lm: DiffusionLM,
    prompts: Sequence[Encoded],
    groups: Sequence[Sequence[Generation]],
    graded: Sequence[Sequence[Sequence[Verdict]]],
    reward_funcs: Sequence[RewardFunction],
    reward_weights: Sequence[float] | None,
    gen_length: int,
) -> Rollout:
    """A rollout from the responses of all prompts and what the reward functions said about them.

    Args:
        lm: special ids.
        prompts: tokenised prompts.
        groups: responses of each prompt, equally many.
        graded: verdicts per prompt and response, one per function.
        reward_funcs, reward_weights: as of `rollout`.
        gen_length: longest response.
    """
    size = len(groups[0])
    generations = [generation for group in groups for generation in group]
    rows = [prompt for prompt in prompts for _ in range(size)]
    rewards, metrics = combine(reward_funcs, reward_weights, [verdicts for group in graded for verdicts in group])
    total = torch.tensor(rewards, dtype=torch.float32)
    batch = _batch(lm, rows, generations, size, total, gen_length)
    by_group = total.view(-1, size)
    told = [generation.cost.nfe for generation in generations if generation.cost.nfe]
    metrics |= {
        "reward": float(total.mean()),
        "zero_variance_groups": float((by_group.max(1).values == by_group.min(1).values).float().mean()),
        "response_tokens": sum(len(through_stop(generation)) for generation in generations) / len(generations),
    }
    if told:
        metrics["rollout_nfe"] = sum(told) / len(told)
    if len(told) < len(generations):  # of a server that does not tell them
        metrics["rollout_nfe_known"] = len(told) / len(generations)
    return Rollout(
        batch=batch,
        generations=generations,
        metrics=metrics,
        tokens=sum(generation.cost.tokens_committed for generation in generations),
        nfe=sum(generation.cost.nfe for generation in generations),
        flops=sum(generation.cost.flops for generation in generations),
    )


def _sample(
    lm: DiffusionLM,
    prompts: Sequence[Encoded],
    decoder: DecoderConfig,
    *,
    group_size: int,
    seed: int,
    step: int,
    batch_size: int,
) -> list[list[Generation]]:
    """The responses of each prompt."""
    rows = [prompt.prompt for prompt in prompts for _ in range(group_size)]
    seeds = [
        stream_seed(seed, "rollout", step, prompt.id, member) for prompt in prompts for member in range(group_size)
    ]
    lm.eval()
    found = generate(lm, rows, decoder, seeds, batch_size=batch_size)
    return [found[begin : begin + group_size] for begin in range(0, len(found), group_size)]


def grade_groups(
    lm: DiffusionLM,
    groups: Sequence[Sequence[Generation]],
    prompts: Sequence[Encoded],
    messages: Sequence[Sequence[dict[str, str]]],
    reward_funcs: Sequence[RewardFunction],
    gen_length: int,
) -> list[list[list[Verdict]]]:
    """The verdicts on each prompt's responses, one per function."""
    if not groups:
        return []
    size = len(groups[0])
    texts = [lm.decode(generation.text_ids) for group in groups for generation in group]
    repeated = [conversation for conversation in messages for _ in range(size)]
    left = [gen_length - len(through_stop(generation)) for group in groups for generation in group]
    columns = columns_of([prompt.columns for prompt in prompts for _ in range(size)], left)
    verdicts = grade(reward_funcs, repeated, texts, columns)
    return [verdicts[begin : begin + size] for begin in range(0, len(verdicts), size)]


def through_stop(generation: Generation) -> list[int]:
    """Tokens of a response up to and including its first stop token."""
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
    ends = batch.prompt_lengths + torch.tensor([len(through_stop(generation)) for generation in generations])
    columns = torch.arange(batch.ids.shape[1])
    batch.counted = batch.counted & (columns < ends[:, None])
    batch.groups = torch.arange(len(rows)) // group_size
    batch.rewards = rewards
    step_map, blocks = torch.full(batch.ids.shape, NEVER), torch.zeros_like(batch.ids)
    for index, generation in enumerate(generations):
        begin = int(batch.prompt_lengths[index])
        blocks[index, [begin + start for start in generation.block_starts if start]] = 1
        steps = torch.tensor(generation.step_map)
        # Fill behind an end token was not chosen by the network: no step of the trajectory has it as its target.
        step_map[index, begin : begin + len(steps)] = torch.where(steps < 0, NEVER, steps)
    batch.trace = Trace(step_map, blocks=blocks.cumsum(1), limit=gen_length)
    return batch


def _decoded(generation: Generation) -> list[tuple[int, int]]:
    return list(zip(generation.token_ids, generation.step_map, strict=True))
