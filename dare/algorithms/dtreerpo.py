"""d-TreeRPO: rollouts branch, values come from the leaves, siblings are compared with each other (arXiv 2512.09675)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dare_bench.dare.algorithms import trees
from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.options import COUNTED, KLS, check_choice, check_range
from dare_bench.dare.algorithms.policy import GroupPolicy, clipped_tokens
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from dare_bench.dare.algorithms import distillation
    from torch import Tensor
else:
    distillation = lazy_import("dare_bench.dare.algorithms.distillation")
    torch = lazy_import("torch")
    objectives = lazy_import("dare_bench.dare.algorithms.objectives")
    trees = lazy_import("dare_bench.dare.algorithms.trees")


@dataclass(frozen=True)
class DTreeRPOConfig:
    """Options of `dtreerpo`.

    Attributes:
        levels: edges from the root to a leaf; each takes an equal share of the denoising steps.
        root_branches, branches: children of the root, and of every other inner node.
        inner_iterations: optimiser steps on one set of trees.
        segments: edges of an optimiser step: ``all``, or ``parent`` = those below one node of every prompt's tree, node
            after node in random order, each for an equal share of the inner iterations.
        temperature: of the rollout.
        counted: places of an edge that count: ``eos`` = through the child's first stop token, or ``canvas`` = all.
        eps_low, eps_high, dual_clip, beta, kl: clip range and KL as of every clipped policy gradient.
        lambda_max, gamma: weight of the self-distillation, lambda_max (e^(gamma u) - 1) / (e^gamma - 1), u = progress.
        tau_max, beta_tau: temperature of its weights, tau_max (1 - u)^beta_tau.
    """

    levels: int = 2
    root_branches: int = 4
    branches: int = 4
    inner_iterations: int = 1
    segments: str = "all"
    temperature: float = 0.9
    counted: str = "eos"
    eps_low: float = 0.4
    eps_high: float | None = None
    dual_clip: float | None = None
    beta: float = 0.01
    kl: str = "k3"
    lambda_max: float = 3e-3
    gamma: float = 2.0
    tau_max: float = 2.0
    beta_tau: float = 0.7

    def __post_init__(self) -> None:
        infinite = float("inf")
        bounds = {"levels": (1, infinite), "root_branches": (2, infinite), "branches": (2, infinite),
                  "inner_iterations": (1, infinite), "temperature": (0, infinite), "eps_low": (0, 1),
                  "eps_high": (0, infinite), "dual_clip": (1, infinite), "beta": (0, infinite),
                  "lambda_max": (0, infinite), "tau_max": (0, infinite), "beta_tau": (0, infinite)}  # fmt: skip
        check_range(self, bounds)
        check_choice(self, {"segments": ("all", "parent"), "counted": COUNTED, "kl": KLS})
        if not 0 < self.gamma <= 100:
            raise ValueError(f"gamma: {self.gamma!r}; allowed: above 0, up to 100")
        if self.segments == "parent" and self.inner_iterations < self.shape.parents:
            raise ValueError(
                f"inner_iterations: {self.inner_iterations}; allowed with segments: 'parent': at least "
                f"{self.shape.parents}, one for each inner node of a tree"
            )

    @property
    def shape(self) -> trees.Shape:
        """Shape of a prompt's tree."""
        return trees.Shape(self.levels, self.root_branches, self.branches)

    @property
    def group_size(self) -> int:
        """Responses per prompt: the leaves."""
        return self.shape.leaves


_PUBLISHED: dict[str, Any] = {
    "levels": 2, "root_branches": 4, "branches": 4, "eps_low": 0.4, "beta": 0.01, "kl": "k3", "temperature": 0.9,
    "lambda_max": 3e-3, "gamma": 2.0, "tau_max": 2.0, "beta_tau": 0.7,
}  # fmt: skip
_TRAIN: dict[str, Any] = {"lr": 3e-5, "betas": (0.9, 0.99), "weight_decay": 0.1, "grad_clip": 0.2}


@register(
    "dtreerpo",
    families={"dream", "llada", "llada_moe"},
    config=DTreeRPOConfig,
    presets={
        "paper": _PUBLISHED,
        "repo": {**_PUBLISHED, "segments": "parent", "inner_iterations": 60},
        "dare": {**_PUBLISHED, "inner_iterations": 12, "segments": "all"},
    },
    train_presets={
        "repo": {**_TRAIN, "batch_size": 4},
        "dare": {**_TRAIN, "batch_size": 16},
    },
)  # fmt: skip
class DTreeRPO(GroupPolicy):
    """d-TreeRPO: policy gradient on the edges of rollout trees, and self-distillation towards the better siblings.

    A leaf's value is its reward, an inner node's the mean of its children's; an edge's advantage is the child's value minus
    the mean of its siblings'. An edge's tokens are scored in one forward on the parent's state, which all children of it
    share: one row per parent, one candidate per child. Loss: mean over the tokens of an edge, then over edges.

    Published settings: 256 tokens, blocks of 32, 16 steps each; low-rank adapters of rank 128, alpha 64.

    Source:
        arXiv 2512.09675; THU-BPM/d-TreeRPO `dtreerpo_trainer.py`.
    """

    name = "dtreerpo"
    needs = Needs(rollout="tree", old=True, ref="frozen")
    Config = DTreeRPOConfig

    def advantages(self, batch: Batch) -> Tensor:
        """Advantages of all nodes over their siblings, float [M]; 0 for roots."""
        assert batch.rewards is not None, f"{self.name} needs rewards"
        tree = trees.tree_of(batch)
        return trees.sibling_advantages(trees.values(batch.rewards, tree.parents, tree.leaf), tree.parents)

    def rows(self, batch: Batch, context: Context) -> Iterator[Rows]:
        """One row per inner node, its children's tokens as candidates; `draw` is the node. No draws but the segment's."""
        parents, family = trees.children(trees.tree_of(batch).parents)
        if self.config.segments == "parent":
            kept = trees.segment(trees.tree_of(batch).parents, parents, context)
            parents, family = parents[kept], family[kept]
        yield trees.rows(batch, parents, family, self._active(batch, family))

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Clipped surrogate + beta x KL, mean over each edge's tokens, then over edges; plus lambda x self-distillation."""
        assert context.batch is not None, "the edges are read from the batch's tree"
        count, width, candidates = new.shape
        every, family = trees.children(trees.tree_of(context.batch).parents)
        family = family[torch.searchsorted(every, rows.draw.cpu())]
        active = self._active(context.batch, family)[..., :width].to(new.device)
        edges = (family >= 0).to(new.device)
        advantage = torch.where(edges, advantages[family.clamp(min=0).to(advantages.device)].to(new.device), 0.0)

        def flat(value: Tensor) -> Tensor:
            return value.transpose(1, 2).reshape(count * candidates, width)

        def scored(value: Tensor | None) -> Tensor | None:
            return None if value is None else flat(value)

        mask = flat(active.transpose(1, 2))
        options: Any = self.config  # holds the fields of `ClipOptions` that are read
        per_token, metrics = clipped_tokens(flat(new), scored(old), scored(ref), mask, advantage.reshape(-1), options)
        per_edge = torch.where(mask, per_token, 0.0).sum(1) / mask.sum(1).clamp(min=1)
        loss = per_edge.sum() / edges.sum().clamp(min=1)
        weight, tau = self.schedule(context)
        if weight:
            distilled = distillation.distillation(new, rows.targets, active, advantage, tau)
            loss = loss + weight * distilled
            metrics["self_distillation"] = float(distilled.detach())
        return loss, metrics | {"loss": float(loss.detach())}

    def schedule(self, context: Context) -> tuple[float, float]:
        """Weight and temperature of the self-distillation at an optimiser step."""
        config = self.config
        done = context.step * context.inner_iterations + context.inner
        progress = min(done / max(context.total_steps, 1), 1.0)
        weight = config.lambda_max * math.expm1(config.gamma * progress) / math.expm1(config.gamma)
        return weight, max(config.tau_max * (1 - progress) ** config.beta_tau, 1e-6)

    def _active(self, batch: Batch, family: Tensor) -> Tensor:
        """Tokens that an edge committed and that count, bool [N, K, S]; none where there is no child."""
        return trees.committed(batch, family, through_stop=self.config.counted == "eos")
