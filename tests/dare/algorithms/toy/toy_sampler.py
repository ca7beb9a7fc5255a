"""Rollouts of the toy network: by confidence in blocks, left to right, or as a tree, with every trace of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from dare_bench.dare.algorithms.base import Batch, Needs, Steps, Trace, Tree
from torch import Tensor
from toy_network import ToyLM

Grader = Callable[[Tensor, Tensor], Tensor]


@dataclass
class State:
    """Partly denoised sequences and how they came about."""

    ids: Tensor
    when: Tensor
    inputs: list[Tensor] = field(default_factory=list)
    guesses: list[Tensor] = field(default_factory=list)
    confidence: list[Tensor] = field(default_factory=list)

    def repeat(self, times: int) -> State:
        """Each sequence several times."""
        return State(self.ids.repeat_interleave(times, 0), self.when.repeat_interleave(times, 0))


class Sampler:
    """Denoises responses of one length.

    Args:
        lm: network.
        prompt, length: tokens of prompts and responses.
        block: response tokens decoded at a time.
        steps: forwards per block.
        generator: of every draw.
        greedy: take the most probable tokens.
    """

    def __init__(
        self,
        lm: ToyLM,
        prompt: int,
        length: int,
        block: int,
        steps: int,
        generator: torch.Generator,
        greedy: bool = False,
    ) -> None:
        self.lm, self.prompt, self.length, self.generator, self.greedy = lm, prompt, length, generator, greedy
        columns = torch.arange(prompt + length)
        origin = 0 if lm.is_block_causal else prompt
        self.blocks = (columns - origin).div(block, rounding_mode="floor")
        self.blocks = torch.where(columns < prompt, -1, self.blocks - self.blocks[prompt])
        self.plan = [(number, left) for number in range(int(self.blocks.max()) + 1) for left in range(steps, 0, -1)]

    def start(self, prompts: Tensor) -> State:
        """Fully masked responses."""
        masks = torch.full((len(prompts), self.length), self.lm.mask_token_id)
        ids = torch.cat([prompts, masks], 1)
        return State(ids, torch.full(ids.shape, -1))

    @torch.no_grad()
    def advance(self, state: State, begin: int, end: int, *, left_to_right: bool = False) -> State:
        """Denoise by the steps begin..end-1 of the plan."""
        for step in range(begin, min(end, len(self.plan))):
            number, left = self.plan[step]
            masked = state.ids == self.lm.mask_token_id
            probabilities = self.lm.logits(state.ids).softmax(-1)
            flat = probabilities.flatten(0, 1)
            drawn = flat.argmax(-1) if self.greedy else torch.multinomial(flat, 1, generator=self.generator)[:, 0]
            drawn = drawn.view(state.ids.shape)
            sure = probabilities.gather(-1, drawn[..., None])[..., 0]
            state.inputs.append(state.ids)
            state.guesses.append(torch.where(masked, drawn, state.ids))
            state.confidence.append(sure * masked)
            open_here = masked & (self.blocks == number)
            count = -(-int(open_here[0].sum()) // left)  # every row has as many left
            place = torch.arange(state.ids.shape[1]).double().expand_as(sure)
            order = (-place if left_to_right else sure.double()).masked_fill(~open_here, -torch.inf)
            chosen = torch.zeros_like(masked).scatter_(1, order.topk(max(count, 1), 1).indices, True) & open_here
            state.ids = torch.where(chosen, drawn, state.ids)
            state.when = torch.where(chosen, step, state.when)
        return state

    def batch(self, needs: Needs, prompts: Tensor, group: int, grade: Grader, name: str) -> Batch:
        """A graded rollout of the kind that an algorithm needs; `group` is (children, leaves of each) of a tree."""
        tree = None
        if needs.rollout == "tree":
            width = round(group**0.5)
            half = len(self.plan) // 2
            roots = self.start(prompts)
            nodes = self.advance(roots.repeat(width), 0, half)
            inner = nodes.ids.clone()
            state = self.advance(nodes.repeat(width), half, len(self.plan))
            tree = _tree(roots.ids, inner, state.ids, width)
            group = width * width
        else:
            plan = self.start(prompts).repeat(group)
            state = self.advance(plan, 0, len(self.plan), left_to_right=needs.rollout == "ar")
        rewards = grade(state.ids[:, : self.prompt], state.ids[:, self.prompt :])
        batch = batch_of(self.lm, state.ids, self.prompt, group, name)
        batch.rewards = rewards
        trace = Trace(state.when, blocks=self.blocks.clamp(min=0).expand_as(state.ids), limit=self.length, tree=tree)
        if needs.trace == "states":
            guesses = torch.stack(state.guesses, 1)
            scores = grade(state.ids[:, : self.prompt].repeat_interleave(guesses.shape[1], 0),
                           guesses[..., self.prompt :].flatten(0, 1))  # fmt: skip
            trace.steps = Steps(torch.stack(state.inputs, 1), guesses, torch.stack(state.confidence, 1),
                                scores.view(guesses.shape[:2]))  # fmt: skip
        batch.trace = trace
        return batch


def batch_of(lm: ToyLM, ids: Tensor, prompt: int, group: int, name: str) -> Batch:
    """Sequences of one length as a batch; neighbours of a group share their prompt."""
    count, width = ids.shape
    groups = torch.arange(count) // group
    return Batch(
        ids=ids,
        prompt_lengths=torch.full((count,), prompt),
        lengths=torch.full((count,), width),
        counted=(torch.arange(width) >= prompt).expand(count, -1).clone(),
        sample_ids=[f"{name}/{int(number)}" for number in groups],
        groups=groups,
        mask_token_id=lm.mask_token_id,
        eos_token_id=lm.mask_token_id + 1,
        block_length=lm.block_length,
    )


def _tree(roots: Tensor, inner: Tensor, leaves: Tensor, width: int) -> Tree:
    states, parents, member, leaf = [], [], [], []
    for prompt in range(len(roots)):
        root = len(states)
        first = prompt * width * width
        states.append(roots[prompt])
        parents.append(-1)
        member.append(first)
        leaf.append(-1)
        for child in range(width):
            node = len(states)
            states.append(inner[prompt * width + child])
            parents.append(root)
            member.append(first + child * width)
            leaf.append(-1)
            for row in range(first + child * width, first + (child + 1) * width):
                states.append(leaves[row])
                parents.append(node)
                member.append(row)
                leaf.append(row)
    return Tree(torch.stack(states), torch.tensor(parents), torch.tensor(member), torch.tensor(leaf))
