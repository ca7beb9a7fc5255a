"""Rollouts that branch: several continuations of one half-denoised state, to the leaves, which are graded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from dare_bench.dare.algorithms.base import Tree
from dare_bench.dare.algorithms.trees import Shape
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.generation import Cost, Generation
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed
from dare_bench.dare.training import sharding
from dare_bench.dare.training.canvases import Canvas, forward_cost, text_length
from dare_bench.dare.training.data import Encoded
from dare_bench.dare.training.denoise import Denoiser
from dare_bench.dare.training.grading import RewardFunction
from dare_bench.dare.training.rollout import Rollout, assemble, grade_groups
from dare_bench.dare.training.world import ALONE, World


@dataclass
class _Node:
    """A node of one prompt's tree; `state` holds the tokens behind the prompt."""

    parent: int
    path: tuple[int, ...]
    state: list[int]


@dataclass
class _Grown:
    """The tree of one prompt: its nodes from the root down, its leaves last; responses; cost of all edges."""

    nodes: list[_Node]
    leaves: list[Generation]
    cost: Cost


def rollout_tree(
    lm: DiffusionLM,
    prompts: Sequence[Encoded],
    messages: Sequence[Sequence[dict[str, str]]],
    decoder: DecoderConfig,
    *,
    shape: Shape,
    seed: int,
    step: int,
    reward_funcs: Sequence[RewardFunction],
    reward_weights: Sequence[float] | None = None,
    batch_size: int = 128,
    world: World = ALONE,
) -> Rollout:
    """Grow one tree per prompt and grade its leaves.

    Args:
        lm: policy, in evaluation mode; full attention.
        prompts, messages, seed, step, reward_funcs, reward_weights, world: as of `rollout.rollout`.
        decoder: the fields that `denoise.check` names count.
        shape: of the trees. With T steps level l of n covers the steps from T l / n on, rounded down.
        batch_size: rows per forward; prompts of like length go together. No result depends on it.

    Returns:
        The rollout, with `Batch.trace.tree`; its responses are the leaves. An edge is counted once in its totals, also
        where several leaves lie below it.

    Raises:
        ValueError: fewer steps than levels.
    """
    lm.eval()
    denoiser = Denoiser(lm, decoder)
    denoiser.check_levels(shape.levels)
    mine = range(world.rank, len(prompts), world.size)
    with sharding.gathered(lm):
        grown = _grow(denoiser, [prompts[index] for index in mine], shape, seed, step, batch_size)
    graded = grade_groups(
        lm, [tree.leaves for tree in grown], [prompts[index] for index in mine], [messages[index] for index in mine],
        reward_funcs, denoiser.gen_length,
    )  # fmt: skip
    grown = world.interleave(grown, len(prompts))
    graded = world.interleave(graded, len(prompts))
    rolled = assemble(
        lm, prompts, [tree.leaves for tree in grown], graded, reward_funcs, reward_weights, denoiser.gen_length
    )
    assert rolled.batch.trace is not None
    rolled.batch.trace.tree = _tree(lm, rolled, grown)
    rolled.tokens = sum(tree.cost.tokens_committed for tree in grown)
    rolled.nfe = sum(tree.cost.nfe for tree in grown)
    rolled.flops = sum(tree.cost.flops for tree in grown)
    rolled.metrics["rollout_nfe"] = rolled.nfe / len(rolled.generations)
    return rolled


def _grow(
    denoiser: Denoiser, prompts: Sequence[Encoded], shape: Shape, seed: int, step: int, batch_size: int
) -> list[_Grown]:
    """The trees of some prompts, level by level; all nodes of a level are denoised together."""
    lm, length = denoiser.lm, denoiser.gen_length
    grown = [_Grown([_Node(-1, (), [lm.mask_token_id] * length)], [], Cost()) for _ in prompts]
    places = [(index, 0) for index in range(len(prompts))]
    canvases = [denoiser.start([prompt.prompt]) for prompt in prompts]
    for level in range(shape.levels):
        width = shape.branches if level else shape.root_branches
        begin, end = (denoiser.steps * number // shape.levels for number in (level, level + 1))
        tasks = [(place, child) for place in range(len(places)) for child in range(width)]
        order = sorted(tasks, key=lambda task: -canvases[task[0]].ids.shape[1])
        done: dict[tuple[int, int], Canvas] = {}
        for first in range(0, len(order), batch_size):
            part = order[first : first + batch_size]
            seeds = []
            for place, child in part:
                index, node = places[place]
                path = (*grown[index].nodes[node].path, child)
                seeds.append(stream_seed(seed, "tree", step, prompts[index].id, *path))
            after = denoiser.run(_stack(lm, [canvases[place] for place, _ in part]), seeds, begin, end)
            done |= {task: _row(after, row, canvases[task[0]]) for row, task in enumerate(part)}
        following, states = [], []
        for task in tasks:  # children of a node stay together, prompts in order
            place, child = task
            index, node = places[place]
            _add(lm, grown[index], done[task], canvases[place], node, child, length)
            following.append((index, len(grown[index].nodes) - 1))
            states.append(done[task])
        places, canvases = following, states
    for (index, _), canvas in zip(places, canvases, strict=True):
        grown[index].leaves += denoiser.take(canvas)
    return grown


def _add(lm: DiffusionLM, tree: _Grown, after: Canvas, before: Canvas, parent: int, child: int, length: int) -> None:
    """Put a node into its tree, with the cost of the edge to it."""
    prompt = int(after.prompt[0])
    state = after.ids[0, prompt : prompt + length].tolist()
    nfe, outputs = int(after.nfe[0] - before.nfe[0]), int(after.outputs[0] - before.outputs[0])
    spent = forward_cost(lm.dims, nfe, outputs, prompt + length)
    tree.cost.nfe += nfe
    tree.cost.flops += spent.flops
    masks = tree.nodes[parent].state.count(lm.mask_token_id) - state.count(lm.mask_token_id)
    tree.cost.tokens_committed += masks
    tree.nodes.append(_Node(parent, (*tree.nodes[parent].path, child), state))


def _stack(lm: DiffusionLM, canvases: Sequence[Canvas]) -> Canvas:
    """One canvas of single rows, padded at the right."""
    width = max(canvas.ids.shape[1] for canvas in canvases)
    fill = {"ids": lm.pad_token_id, "real": False, "step_map": -1, "confidence": 0.0, "best": -torch.inf}
    columns = {
        name: torch.cat([torch.nn.functional.pad(getattr(canvas, name), (0, width - canvas.ids.shape[1]), value=value)
                         for canvas in canvases])
        for name, value in fill.items()
    }  # fmt: skip
    return Canvas(**columns, **{name: torch.cat([getattr(canvas, name) for canvas in canvases]) for name in _NUMBERS})


def _row(canvas: Canvas, row: int, like: Canvas) -> Canvas:
    """One row, cut to the width it had alone."""
    picked, width = canvas.pick([row]), like.ids.shape[1]
    return Canvas(
        **{name: getattr(picked, name) if name in _NUMBERS else getattr(picked, name)[:, :width]
           for name in ("ids", "real", "step_map", "confidence", "best", *_NUMBERS)}
    )  # fmt: skip


_NUMBERS = ("prompt", "nfe", "outputs")


def _tree(lm: DiffusionLM, rolled: Rollout, grown: Sequence[_Grown]) -> Tree:
    """All trees as one, nodes of a prompt together; states lie over the batch's columns."""
    batch = rolled.batch
    states, parents, member, leaf, counted = [], [], [], [], []
    first_leaf = 0
    for tree in grown:
        base, inner = len(states), len(tree.nodes) - len(tree.leaves)
        below = list(range(len(tree.nodes)))
        for number in reversed(range(len(tree.nodes))):  # a node's first leaf is that of its first child
            node = tree.nodes[number]
            if number >= inner:
                below[number] = first_leaf + number - inner
            if node.parent >= 0:
                below[node.parent] = below[number]
        for number, node in enumerate(tree.nodes):
            row = below[number]
            begin = int(batch.prompt_lengths[row])
            state = batch.ids[row].clone()
            state[begin : begin + len(node.state)] = torch.tensor(node.state)
            ends = min(text_length(lm, node.state) + 1, len(node.state))
            columns = torch.arange(len(state))
            states.append(state)
            parents.append(node.parent + base if node.parent >= 0 else -1)
            member.append(row)
            leaf.append(row if number >= inner else -1)
            counted.append((columns >= begin) & (columns < begin + ends))
        first_leaf += len(tree.leaves)
    return Tree(
        torch.stack(states), torch.tensor(parents), torch.tensor(member), torch.tensor(leaf), torch.stack(counted)
    )
