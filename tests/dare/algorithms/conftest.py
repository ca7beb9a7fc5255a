"""Oracles and hand-made batches for the tests of the algorithms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dare_bench.dare.algorithms.base import Batch, Needs, Steps, Trace, Tree

DATA = Path(__file__).parent / "data"
MASK, EOS = 63, 62


@pytest.fixture
def oracle() -> Callable[[str], dict[str, Any]]:
    """Reads one file of reference values (see the README beside the shared fixtures)."""

    def read(name: str) -> dict[str, Any]:
        return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))

    return read


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., Batch]:
    """Batches of random tokens: prompt and response lengths per row, padded at the right."""

    def make(
        prompts: list[int],
        responses: list[int],
        *,
        block_length: int = 0,
        seed: int = 0,
        counted: list[int] | None = None,
        rewards: list[float] | None = None,
        groups: list[int] | None = None,
        sample_ids: list[str] | None = None,
    ) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        prompt_lengths, lengths = torch.tensor(prompts), torch.tensor(prompts) + torch.tensor(responses)
        columns = torch.arange(int(lengths.max()))
        ids = torch.full((len(prompts), len(columns)), EOS)
        for row in range(len(prompts)):  # one draw per row: a row does not depend on the others' lengths
            ids[row, : lengths[row]] = torch.randint(0, EOS, (int(lengths[row]),), generator=generator)
        ends = prompt_lengths + torch.tensor(responses if counted is None else counted)
        return Batch(
            ids=ids,
            prompt_lengths=prompt_lengths,
            lengths=lengths,
            counted=(columns >= prompt_lengths[:, None]) & (columns < ends[:, None]),
            sample_ids=sample_ids or [f"s{row}" for row in range(len(prompts))],
            groups=torch.tensor(groups) if groups is not None else torch.arange(len(prompts)),
            mask_token_id=MASK,
            eos_token_id=EOS,
            block_length=block_length,
            rewards=None if rewards is None else torch.tensor(rewards, dtype=torch.float64),
        )

    return make


GROUP, HALVES = 4, 2


@pytest.fixture(scope="session")
def rolled() -> Callable[..., Batch]:
    """Batches as a rollout (or preference data) of an algorithm's kind gives them, with every trace it may ask for.

    Two prompts of four responses (``uncounted``: a third prompt whose responses hold no counted token). Four tokens at a
    time were decoded in two steps each. Under ``tree`` the first two responses of a group share the first half of their
    steps, and so do the last two.
    """

    def make(
        needs: Needs, block_length: int = 0, *, uncounted: bool = False, equal: bool = False, seed: int = 0
    ) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        groups = torch.arange(2 + uncounted).repeat_interleave(GROUP)
        prompts = torch.tensor([4, 6, 4])[groups]
        responses = torch.tensor([8, 8, 4, 8, 6, 10, 6, 6] if block_length else [8] * 8)
        if needs.rollout == "tree" or equal:  # leaves of a tree lie in the same blocks
            responses = torch.tensor([8] * 4 + [6] * 4) if block_length else responses
        responses = torch.cat([responses, responses[:4]])[: len(groups)]
        lengths, width = prompts + responses, int((prompts + responses).max())
        columns = torch.arange(width)
        response = (columns >= prompts[:, None]) & (columns < lengths[:, None])
        local = (columns - prompts[:, None]).clamp(min=0)
        blocks = local // 4 if not block_length else columns.div(4, rounding_mode="floor") - prompts[:, None] // 4
        coins = torch.rand(GROUP * 3, width, generator=generator)[: len(groups)]
        if needs.rollout == "tree":
            coins = coins[groups * GROUP]  # one order of commits per prompt
        step_map = torch.where(response, 2 * blocks + (coins > 0.5), -1)
        ids = torch.randint(0, EOS, (GROUP * 3, width), generator=generator)[: len(groups)]
        first = torch.where(columns < prompts[:, None], ids[groups * GROUP], ids)
        ids = torch.where(columns < lengths[:, None], first, EOS)
        steps = int(step_map.max()) + 1
        if needs.rollout == "tree":
            shared = response & (step_map < steps // 2)
            ids = torch.where(shared, ids[torch.arange(len(ids)) // HALVES * HALVES], ids)
        counts = torch.tensor([8, 6, 3, 8, 5, 1, 6, 4]).minimum(responses[:8])
        counts = torch.cat([counts, torch.zeros(GROUP, dtype=torch.int64)])[: len(groups)]
        rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 0.0, 1.0, 0.0, 0.25, 0.0, 1.0, 0.0, 1.0])[: len(groups)].double()
        pairs = torch.arange(len(groups)) // 2
        batch = Batch(
            ids=ids,
            prompt_lengths=prompts,
            lengths=lengths,
            counted=response & (columns < (prompts + counts)[:, None]),
            sample_ids=[f"prompt {int(group)}" for group in (pairs if needs.pairs else groups)],
            groups=pairs if needs.pairs else groups,
            mask_token_id=MASK,
            eos_token_id=EOS,
            block_length=block_length,
            rewards=None if needs.rollout == "none" else rewards,
            chosen=torch.arange(len(groups)) % 2 == 0 if needs.pairs else None,
        )
        if needs.pairs:  # the likelihood of a pair is that of its response alone
            batch.sample_ids = [f"{uid}/{index % 2}" for index, uid in enumerate(batch.sample_ids)]
            batch.lengths = prompts + counts
        elif needs.rollout != "none":
            batch.trace = Trace(step_map, blocks=blocks.clamp(min=0) * response, limit=int(responses.max()))
            batch.trace.steps = _steps(batch, steps, generator)
            batch.trace.tree = _tree(batch, steps) if needs.rollout == "tree" else None
        return batch

    return make


def _steps(batch: Batch, steps: int, generator: torch.Generator) -> Steps:
    """Inputs, full guesses, their confidence and rewards at every step; the last guess is the response."""
    assert batch.trace is not None and batch.rewards is not None
    when = batch.trace.step_map[:, None]
    step = torch.arange(steps)[None, :, None]
    masked = (when >= step) & batch.response[:, None]
    inputs = torch.where(masked, MASK, batch.ids[:, None])
    random = torch.randint(0, EOS, (12, *masked.shape[1:]), generator=generator)[: len(masked)]
    guesses = torch.where(masked & (when > step), random, batch.ids[:, None])
    confidence = torch.rand(12, *masked.shape[1:], generator=generator)[: len(masked)] * masked
    rewards = torch.rand(12, steps, generator=generator, dtype=torch.float64)[: len(masked)]
    rewards[:, -1] = batch.rewards
    return Steps(inputs, guesses, confidence, rewards)


def _tree(batch: Batch, steps: int) -> Tree:
    """Per prompt: a root, two nodes with the first half of the steps, two leaves below each."""
    assert batch.trace is not None
    states, parents, member, leaf = [], [], [], []

    def add(row: int, until: int, parent: int, own: int) -> int:
        hidden = batch.response[row] & (batch.trace.step_map[row] >= until)
        states.append(torch.where(hidden, MASK, batch.ids[row]))
        parents.append(parent)
        member.append(row)
        leaf.append(own)
        return len(states) - 1

    for begin in range(0, len(batch.ids), GROUP):
        root = add(begin, 0, -1, -1)
        for half in range(begin, begin + GROUP, HALVES):
            node = add(half, steps // 2, root, -1)
            for row in range(half, half + HALVES):
                add(row, steps, node, row)
    return Tree(torch.stack(states), torch.tensor(parents), torch.tensor(member), torch.tensor(leaf))


class PlainModel:
    """A network of two matrices: a position reads the mean of the embeddings before it (causal) or of all."""

    def __init__(self, vocab: int, causal: bool) -> None:
        torch.manual_seed(vocab)
        self.causal, self.device, self.dtype = causal, torch.device("cpu"), torch.float64
        self.embedding = torch.nn.Parameter(torch.randn(vocab, 8, dtype=torch.float64))
        self.head = torch.nn.Linear(8, vocab, bias=False, dtype=torch.float64)
        torch.nn.init.normal_(self.head.weight)
        self.model = self

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.head

    def states(self, ids: torch.Tensor) -> torch.Tensor:
        """Hidden states [N, S, 8]."""
        found = self.embedding[ids]
        place = torch.arange(1, ids.shape[1] + 1, dtype=torch.float64)[:, None]
        if self.causal:
            return (found.cumsum(1) - found) / place + place.cos()
        return found.mean(1, keepdim=True) + 0.5 * found.roll(1, 1) + place.cos()

    def hidden(self, ids, *, attention_mask=None, position_ids=None, positions=None):
        """As `DiffusionLM.hidden`, without padding."""
        assert attention_mask is None
        return self.states(ids)[positions]

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [N, S, V]."""
        return self.states(ids) @ self.head.weight.T


@pytest.fixture
def plain_model() -> Callable[..., PlainModel]:
    """`PlainModel` of a vocabulary."""

    def make(vocab: int, *, causal: bool = False) -> PlainModel:
        return PlainModel(vocab, causal)

    return make
