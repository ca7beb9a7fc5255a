"""Small experiments of every algorithm: a network of a few thousand weights learns what it is paid for.

Two tasks. `copy`: vocabulary 8, the response is eight copies of the first prompt token; one layer, four forwards for all
tokens. `count`: vocabulary 6, token i of the response is (first prompt token mod 2 + i) mod 6; two layers, blocks of three
decoded one token at a time. Rows, losses and the two-pass backward are those of training; network and sampler are small.
"""

from __future__ import annotations

import copy
import dataclasses
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Batch, Context, Needs
from dare_bench.dare.diffusion.block import concatenate
from dare_bench.dare.training import replay
from torch import Tensor
from toy_network import ToyLM
from toy_sampler import Sampler, batch_of

#: Options that mean the same under several names.
ALIASES = {"draws": ("draws", "num_draws", "mc_draws", "samples", "mc_samples")}


@dataclass(frozen=True)
class Task:
    """What is learned.

    Attributes:
        vocabulary, length, layers: of tokens, responses and the network.
        block, steps: response tokens decoded at a time, and forwards for them.
        prompts: per batch.
        grade: share of right tokens, from prompts and responses.
    """

    vocabulary: int
    length: int
    layers: int
    block: int
    steps: int
    prompts: int
    grade: Callable[[Tensor, Tensor], Tensor]
    prompt: int = 2

    def draw(self, generator: torch.Generator) -> Tensor:
        """Prompts of a batch."""
        return torch.randint(0, self.vocabulary, (self.prompts, self.prompt), generator=generator)

    def target(self, prompts: Tensor) -> Tensor:
        """The response that earns 1."""
        columns = torch.arange(self.length)
        return (
            prompts[:, :1].expand(-1, self.length) if self is COPY else (prompts[:, :1] % 2 + columns) % self.vocabulary
        )


COPY = Task(8, 8, 1, 8, 4, 8, lambda prompts, responses: (responses == prompts[:, :1]).double().mean(1))
COUNT = Task(6, 6, 2, 3, 3, 4, lambda prompts, responses: (responses == COUNT.target(prompts)).double().mean(1))


@dataclass(frozen=True)
class Toy:
    """Settings of one algorithm's experiment.

    Attributes:
        task: what is learned.
        lr, steps, inner: of AdamW; rollouts, or optimiser steps without them; optimiser steps per rollout.
        options: of the algorithm; names it does not have are left out.
        bound: what the mean of the last rewards must reach, per seed (`copy`) or over seeds (`count`).
        head, tail: points that the first and the last mean are taken over.
        block, shift, group: 0 = full attention; see `ToyLM`; responses per prompt.
    """

    task: Task = COUNT
    lr: float = 2e-3
    steps: int = 150
    inner: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    bound: float = 0.40
    head: int = 5
    tail: int = 10
    block: int = 0
    shift: int = 0
    group: int = 8


def _copy(bound: float, **changes: Any) -> Toy:
    options = {"advantage": "std", "eps_low": 0.2, **changes.pop("options", {})}
    return Toy(COPY, 3e-3, 60, 2, options, bound, tail=5, **changes)


_SFT = {"task": COPY, "lr": 3e-3, "steps": 200, "bound": 0.95, "head": 10}
TOYS: dict[str, Toy] = {
    "sft": Toy(**_SFT),
    "sft, dream": Toy(**_SFT, shift=1),
    "sft, blocks": Toy(**_SFT, block=2),
    "vrpo": Toy(COPY, 3e-4, 100, options={"draws": 4, "beta": 0.2, "sft_weight": 0.0}),
    "dpo": Toy(COPY, 3e-4, 100, options={"draws": 4, "beta": 0.2, "shared_noise": False}),
    "d1": _copy(0.3, options={"prompt_mask": 0.0}),
    "coupled_grpo": _copy(0.5),
    "mdpo": _copy(0.35, options={"kept_steps": 2}),
    "cj_grpo": _copy(0.4),
    "spg": Toy(lr=2e-3, options={"draws": 2}),
    "wd1": Toy(lr=2e-3, options={"draws": 1}),
    "bgpo": Toy(lr=5e-3, options={"draws": 4}),
    "espo": Toy(lr=5e-3, inner=2, steps=120, options={"draws": 2}),
    "ebpo": Toy(lr=5e-3, inner=2, steps=80, options={"draws": 4}, block=3),
    "justgrpo": Toy(lr=5e-3),
    "trace_rl": Toy(lr=5e-3, options={"shrink": 1}),
    "trace_rl, blocks": Toy(lr=5e-3, options={"shrink": 1}, block=3),
    "bgpo, blocks": Toy(lr=5e-3, options={"draws": 4}, block=3),
    "espo, blocks": Toy(lr=5e-3, inner=2, steps=120, options={"draws": 2}, block=3),
    "unigrpo": Toy(lr=2e-3, inner=2, options={"draws": 1}),
    "dtreerpo": Toy(
        lr=2e-3,
        inner=2,
        steps=100,
        options={"eps_low": 0.4, "lambda_max": 0.0, "root_branches": 3, "branches": 3},
        group=9,
    ),
}


@dataclass
class Outcome:
    """What a run gave.

    Attributes:
        first, last: mean reward (without rollouts: loss) of the first and last points.
        values: more numbers by name.
    """

    first: float
    last: float
    values: dict[str, float] = field(default_factory=dict)


def trainable() -> set[str]:
    """Registered algorithms that make rows."""
    return {name for name, entries in registry.algorithms().items() if any(hasattr(e.cls, "rows") for e in entries)}


def experiments() -> list[str]:
    """Names of all experiments: those of `TOYS`, and any registered algorithm beside them under default settings."""
    known, planned = trainable(), {name.split(",")[0] for name in TOYS}
    return [name for name in TOYS if name.split(",")[0] in known] + sorted(known - planned)


def of(name: str) -> Toy:
    """Settings of an experiment."""
    return TOYS.get(name, Toy())


def needs(name: str) -> Needs:
    """What its algorithm needs."""
    return _entry(name).needs


def build(name: str, toy: Toy) -> Any:
    """The algorithm with the options of its experiment."""
    entry = _entry(name)
    known = {option.name for option in dataclasses.fields(entry.config_class)}
    wanted = {"group_size": toy.group, "inner_iterations": toy.inner, **toy.options}
    options = {alias: value for key, value in wanted.items() for alias in ALIASES.get(key, (key,)) if alias in known}
    return entry.cls(entry.config_class(**options))


def _entry(name: str) -> registry.AlgorithmEntry:
    return next(entry for entry in registry.algorithms()[name.split(",")[0]] if hasattr(entry.cls, "rows"))


def shuffled(algorithm: Any, seed: int) -> Any:
    """Control: advantages dealt to other responses of the batch."""
    plain, generator = algorithm.advantages, torch.Generator().manual_seed(seed)

    def advantages(batch: Batch) -> Tensor:
        values = plain(batch)
        return values[torch.randperm(len(values), generator=generator)]

    algorithm.advantages = advantages
    return algorithm


def run(name: str, seed: int, *, control: bool = False) -> Outcome:
    """One experiment.

    Args:
        name: of `experiments`.
        seed: of weights, prompts, rollouts and draws.
        control: with shuffled advantages.
    """
    torch.set_num_threads(1)
    toy = of(name)
    algorithm = build(name, toy)
    if control:
        shuffled(algorithm, seed)
    task = toy.task
    lm = ToyLM(task.vocabulary, task.prompt + task.length, task.layers, block=toy.block, shift=toy.shift, seed=seed)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {seed}".encode()))
    learner = Learner(lm, algorithm, toy, seed)
    if algorithm.needs.pairs:
        return _preferences(learner, generator)
    if algorithm.needs.rollout == "none":
        return _supervised(learner, generator)
    sampler = Sampler(lm, task.prompt, task.length, toy.block or task.block, toy.block or task.steps, generator)
    rewards = []
    for step in range(toy.steps):
        batch = sampler.batch(algorithm.needs, task.draw(generator), toy.group, task.grade, f"{step}")
        rewards.append(float(batch.rewards.mean()))
        learner.cycle(batch, step)
    return Outcome(fmean(rewards[: toy.head]), fmean(rewards[-toy.tail :]))


class Learner:
    """Optimiser steps on batches, as the training loop takes them."""

    def __init__(self, lm: ToyLM, algorithm: Any, toy: Toy, seed: int) -> None:
        self.lm, self.algorithm, self.toy, self.seed = lm, algorithm, toy, seed
        self.optimizer = torch.optim.AdamW(lm.model.parameters(), lr=toy.lr)
        self.reference = copy.deepcopy(lm) if algorithm.needs.ref != "none" else None

    def cycle(self, batch: Batch, step: int) -> dict[str, float]:
        """All inner iterations on one batch; metrics of the last."""
        inner, algorithm = self.toy.inner, self.algorithm
        total = self.toy.steps * inner
        contexts = [Context(self.seed, step, total, j, inner, batch) for j in range(inner)]
        advantages = algorithm.advantages(batch)
        old = [self._scores(self.lm, batch, c) if algorithm.needs.old and inner > 1 else None for c in contexts]
        ref = [self._scores(self.reference, batch, c) if self.reference is not None else None for c in contexts]
        metrics: dict[str, float] = {}
        for j, context in enumerate(contexts):
            parts = algorithm.rows(batch, context)
            metrics = replay.backward(self.lm, algorithm, parts, advantages, context, old=old[j], ref=ref[j])
            torch.nn.utils.clip_grad_norm_(self.lm.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return metrics

    def _scores(self, lm: ToyLM, batch: Batch, context: Context) -> list[Tensor]:
        return [replay.score_all(lm, part, None) for part in self.algorithm.rows(batch, context)]


def _supervised(learner: Learner, generator: torch.Generator) -> Outcome:
    """Losses, and the accuracy of greedy decoding in four steps before and after."""
    toy, task, lm = learner.toy, learner.toy.task, learner.lm
    before = accuracy(lm, toy, generator)
    losses = []
    for step in range(toy.steps):
        prompts = torch.randint(0, task.vocabulary, (64, task.prompt), generator=generator)
        ids = torch.cat([prompts, task.target(prompts)], 1)
        losses.append(learner.cycle(batch_of(lm, ids, task.prompt, 1, f"{step}"), step)["loss"])
    after = accuracy(lm, toy, generator)
    return Outcome(fmean(losses[: toy.head]), fmean(losses[-toy.tail :]), {"before": before, "accuracy": after})


def _preferences(learner: Learner, generator: torch.Generator) -> Outcome:
    """Losses on pairs; accuracy and margin on pairs that were not trained on; reward of greedy samples."""
    toy, task, lm = learner.toy, learner.toy.task, learner.lm
    before = accuracy(lm, toy, generator)

    def pairs(count: int, name: str) -> Batch:
        prompts = torch.randint(0, task.vocabulary, (count, task.prompt), generator=generator).repeat_interleave(2, 0)
        responses = torch.randint(0, task.vocabulary, (2 * count, task.length), generator=generator)
        better = torch.rand(2 * count, task.length, generator=generator) < 0.7
        better[1::2] = False
        batch = batch_of(
            lm, torch.cat([prompts, torch.where(better, prompts[:, :1], responses)], 1), task.prompt, 2, name
        )
        batch.chosen = torch.arange(2 * count) % 2 == 0
        batch.sample_ids = [f"{uid}/{index % 2}" for index, uid in enumerate(batch.sample_ids)]
        return batch

    losses = [learner.cycle(pairs(32, f"{step}"), step)["loss"] for step in range(toy.steps)]
    held = pairs(128, "held out")
    context = Context(learner.seed, 10**6, 1, batch=held)
    # Judged with many draws on shared noise: what was learned, not how well it is estimated.
    judge = type(learner.algorithm)(dataclasses.replace(learner.algorithm.config, draws=16, shared_noise=True))
    rows = concatenate(list(judge.rows(held, context)))
    new, ref = replay.score_all(lm, rows, None), replay.score_all(learner.reference, rows, None)
    _, metrics = judge.loss(new, None, ref, rows, judge.advantages(held), context)
    values = {"initial": losses[0], "before": before, "accuracy": accuracy(lm, toy, generator)}
    values |= {f"held-out {key}": metrics[key] for key in ("accuracy", "margin")}
    return Outcome(fmean(losses[: toy.head]), fmean(losses[-toy.tail :]), values)


def accuracy(lm: ToyLM, toy: Toy, generator: torch.Generator) -> float:
    """Share of right tokens of greedy decoding: four forwards, or two per block."""
    task = toy.task
    block, steps = (toy.block, toy.block) if toy.block else (task.block, task.steps)
    sampler = Sampler(lm, task.prompt, task.length, block, steps, generator, greedy=True)
    prompts = torch.randint(0, task.vocabulary, (64, task.prompt), generator=generator)
    ids = sampler.advance(sampler.start(prompts), 0, len(sampler.plan)).ids
    return float(task.grade(ids[:, : task.prompt], ids[:, task.prompt :]).mean())
