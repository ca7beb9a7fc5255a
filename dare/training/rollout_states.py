"""Rollouts that keep every denoising step: its input, a full guess at every mask, and what the guess is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from dare_bench.dare.algorithms.base import Steps
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.generation import Generation
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed
from dare_bench.dare.training import sharding
from dare_bench.dare.training.canvases import Guess, text_length
from dare_bench.dare.training.data import Encoded
from dare_bench.dare.training.denoise import Denoiser
from dare_bench.dare.training.grading import RewardFunction, Verdict, columns_of, combine, grade
from dare_bench.dare.training.rollout import Rollout, assemble
from dare_bench.dare.training.world import ALONE, World
from torch import Tensor


@dataclass
class _Kept:
    """The steps of one response: places behind its prompt alone, T steps of L places."""

    inputs: Tensor
    guesses: Tensor
    confidence: Tensor


def rollout_states(
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
    remask: bool = False,
    batch_size: int = 128,
    world: World = ALONE,
) -> Rollout:
    """Sample `group_size` responses per prompt, keep all their steps and grade every guess.

    Args:
        lm: policy, in evaluation mode; full attention.
        prompts, messages, group_size, seed, step, reward_funcs, reward_weights, world: as of `rollout.rollout`.
        decoder: the fields that `denoise.check` names count.
        remask: running-confidence remasking, see `denoise.Denoiser`.
        batch_size: rows per forward; prompts of like length go together. No result depends on it.

    Returns:
        The rollout, with `Batch.trace.steps`. Every reward function is called once, with the texts of all guesses of all
        steps; equal texts of a prompt are graded once. The reward of a response is that of its last guess.
    """
    lm.eval()
    denoiser = Denoiser(lm, decoder, remask=remask, everywhere=True)
    mine = range(world.rank, len(prompts), world.size)
    rows = [(index, member) for index in mine for member in range(group_size)]
    order = sorted(range(len(rows)), key=lambda place: -len(prompts[rows[place][0]].prompt))
    made: dict[int, tuple[Generation, _Kept]] = {}
    with sharding.gathered(lm):
        for begin in range(0, len(order), batch_size):
            part = order[begin : begin + batch_size]
            picked = [prompts[rows[place][0]] for place in part]
            seeds = [stream_seed(seed, "rollout", step, prompts[rows[place][0]].id, rows[place][1]) for place in part]
            made |= zip(part, _denoise(denoiser, picked, seeds), strict=True)
    graded = _grade(lm, denoiser, rows, made, prompts, messages, reward_funcs)
    groups = [[(*made[place], graded[place]) for place in range(begin, begin + group_size)]
              for begin in range(0, len(rows), group_size)]  # fmt: skip
    groups = world.interleave(groups, len(prompts))
    rolled = assemble(
        lm, prompts, [[generation for generation, _, _ in group] for group in groups],
        [[verdicts[-1] for _, _, verdicts in group] for group in groups], reward_funcs, reward_weights,
        denoiser.gen_length,
    )  # fmt: skip
    assert rolled.batch.trace is not None
    of_steps = [verdicts for group in groups for _, _, verdicts in group]
    rewards, _ = combine(reward_funcs, reward_weights, [verdict for verdicts in of_steps for verdict in verdicts])
    kept = [kept for group in groups for _, kept, _ in group]
    by_step = torch.tensor(rewards, dtype=torch.float32).view(len(kept), denoiser.steps)
    rolled.batch.trace.steps = _steps(rolled, kept, by_step)
    rolled.metrics["best_step_reward"] = float(by_step.max(1).values.mean())
    return rolled


def _denoise(denoiser: Denoiser, prompts: Sequence[Encoded], seeds: Sequence[int]) -> list[tuple[Generation, _Kept]]:
    """Responses of some rows, with their steps."""
    canvas = denoiser.start([prompt.prompt for prompt in prompts])
    behind = canvas.prompt[:, None] + torch.arange(denoiser.gen_length, device=canvas.prompt.device)
    seen: list[list[Tensor]] = []

    def keep(step: int, guess: Guess) -> None:
        seen.append([value.gather(1, behind).cpu() for value in (guess.inputs, guess.guesses, guess.confidence)])

    canvas = denoiser.run(canvas, seeds, 0, denoiser.steps, keep)
    inputs, guesses, confidence = (torch.stack(values, 1) for values in zip(*seen, strict=True))
    return [
        (generation, _Kept(inputs[row].clone(), guesses[row].clone(), confidence[row].clone()))
        for row, generation in enumerate(denoiser.take(canvas))
    ]


def _grade(
    lm: DiffusionLM,
    denoiser: Denoiser,
    rows: Sequence[tuple[int, int]],
    made: dict[int, tuple[Generation, _Kept]],
    prompts: Sequence[Encoded],
    messages: Sequence[Sequence[dict[str, str]]],
    reward_funcs: Sequence[RewardFunction],
) -> list[list[list[Verdict]]]:
    """Verdicts on every guess: per row, step and function. Guesses of one text, with equal room left, share them."""
    asked: dict[tuple[int, str, int], int] = {}
    which: list[list[int]] = []
    for place, (index, _) in enumerate(rows):
        keys = []
        for ids in made[place][1].guesses.tolist():
            stop = text_length(lm, ids)
            left = denoiser.gen_length - min(stop + 1, len(ids))
            keys.append(asked.setdefault((index, lm.decode(ids[:stop]), left), len(asked)))
        which.append(keys)
    if not asked:
        return []
    columns = columns_of([prompts[index].columns for index, _, _ in asked], [left for _, _, left in asked])
    verdicts = grade(reward_funcs, [messages[index] for index, _, _ in asked], [text for _, text, _ in asked], columns)
    return [[verdicts[key] for key in keys] for keys in which]


def _steps(rolled: Rollout, kept: Sequence[_Kept], rewards: Tensor) -> Steps:
    """The steps of all responses, laid over the batch's columns; prompts and padding are those of the batch."""
    ids, begins = rolled.batch.ids, rolled.batch.prompt_lengths.tolist()
    steps, length = kept[0].inputs.shape
    inputs = ids[:, None].repeat(1, steps, 1)
    guesses, confidence = inputs.clone(), torch.zeros(inputs.shape)
    for row, (begin, own) in enumerate(zip(begins, kept, strict=True)):
        cut = slice(begin, begin + length)
        inputs[row, :, cut], guesses[row, :, cut], confidence[row, :, cut] = own.inputs, own.guesses, own.confidence
    return Steps(inputs, guesses, confidence, rewards)
