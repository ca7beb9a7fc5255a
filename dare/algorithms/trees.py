"""Rollout trees as tensors: values, advantages, rows, self-distillation. Imports torch only when tensors are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Rows, Tree
from dare_bench.dare.lazy import lazy_import
from dare_bench.dare.randomness import stream_seed, uniform

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")


@dataclass(frozen=True)
class Shape:
    """Shape of a tree.

    Attributes:
        levels: edges from the root to a leaf.
        root_branches: children of the root.
        branches: children of every other inner node.
    """

    levels: int
    root_branches: int
    branches: int

    @property
    def leaves(self) -> int:
        """Responses per prompt."""
        return self.root_branches * self.branches ** (self.levels - 1)

    @property
    def parents(self) -> int:
        """Inner nodes per prompt, the root included."""
        return 1 + sum(self.root_branches * self.branches**level for level in range(self.levels - 1))


def tree_of(batch: Batch) -> Tree:
    """The tree of a rollout.

    Raises:
        ValueError: the batch has none.
    """
    if batch.trace is None or batch.trace.tree is None:
        raise ValueError("trace: no tree; allowed is a batch of a rollout that branched")
    return batch.trace.tree


def children(parents: Tensor) -> tuple[Tensor, Tensor]:
    """Inner nodes and their children.

    Args:
        parents: int64 [M], -1 for roots; a child comes behind its parent.

    Returns:
        Inner nodes int64 [N], ascending, and their children int64 [N, K] in ascending order, filled with -1.
    """
    child = (parents >= 0).nonzero()[:, 0]
    order = parents[child].argsort(stable=True)
    child = child[order]
    inner, index, counts = parents[child].unique(return_inverse=True, return_counts=True)
    rank = torch.arange(len(child)) - (counts.cumsum(0) - counts)[index]
    out = torch.full((len(inner), int(counts.max()) if len(counts) else 0), -1)
    out[index, rank] = child
    return inner, out


def values(rewards: Tensor, parents: Tensor, leaf: Tensor) -> Tensor:
    """Values of nodes: a leaf's reward, the mean of an inner node's children.

    Args:
        rewards: float [B], of the responses.
        parents: int64 [M].
        leaf: int64 [M], the response a node is; -1 for inner nodes.

    Returns:
        float [M], in the dtype of the rewards.
    """
    found = torch.where(leaf >= 0, rewards[leaf.clamp(min=0)], torch.zeros((), dtype=rewards.dtype))
    inner, family = children(parents)
    for node, below in zip(inner.tolist()[::-1], family.flip(0), strict=True):  # children before their parents
        found[node] = found[below[below >= 0]].mean()
    return found


def sibling_advantages(value: Tensor, parents: Tensor) -> Tensor:
    """Value of a node minus the mean of its siblings', exactly 0 among equals; 0 without siblings.

    Args:
        value: float [M].
        parents: int64 [M].
    """
    out = torch.zeros_like(value)
    for below in children(parents)[1]:
        own = below[below >= 0]
        among = value[own]
        if len(own) > 1 and bool((among != among[0]).any()):
            out[own] = among - (among.sum() - among) / (len(own) - 1)
    return out


def segment(parents: Tensor, inner: Tensor, context: Context) -> Tensor:
    """Which inner nodes an inner iteration trains on: one of every tree, each for an equal share of the iterations.

    Args:
        parents: int64 [M].
        inner: int64 [N], inner nodes, ascending; nodes of a tree stand together.
        context: run seed and step give the order, the inner iteration the place in it.

    Returns:
        bool [N].
    """
    roots = parents[inner] < 0
    starts = torch.where(roots, torch.arange(len(inner)), 0).cummax(0).values
    rank = torch.arange(len(inner)) - starts
    count = int(rank.max()) + 1
    order = uniform([stream_seed(context.run_seed, "segments", context.step)], count)[0].argsort(stable=True)
    return rank == order[context.inner * count // max(context.inner_iterations, 1)]


def committed(batch: Batch, family: Tensor, *, through_stop: bool) -> Tensor:
    """Places at which a child has a token and its parent a mask, bool [N, K, S].

    Args:
        batch: with its tree.
        family: int64 [N, K], children; -1 = none, no place.
        through_stop: places behind the first stop token of the child do not count, nor do children above responses
            without a counted token.
    """
    tree = tree_of(batch)
    child = family.clamp(min=0)
    masked = tree.states == batch.mask_token_id
    found = masked[tree.parents[child].clamp(min=0)] & ~masked[child] & batch.response[tree.member[child]]
    if through_stop:
        found &= _through_stop(batch, tree)[child]
    return found & (family >= 0)[..., None]


def _through_stop(batch: Batch, tree: Tree) -> Tensor:
    """Places of each node that count, bool [M, S]."""
    counted = tree.counted
    if counted is None:
        ends = (tree.states == batch.eos_token_id) & batch.response[tree.member]
        counted = (ends.long().cumsum(1) - ends.long()) == 0
    leaf = tree.leaf.clamp(min=0)
    any_below = batch.counted.any(1)[leaf] & (tree.leaf >= 0)
    for node in range(len(tree.parents) - 1, -1, -1):  # children before their parents
        if tree.parents[node] >= 0:
            any_below[tree.parents[node]] |= any_below[node]
    return torch.where((tree.leaf >= 0)[:, None], batch.counted[leaf], counted & any_below[:, None])


def rows(batch: Batch, inner: Tensor, family: Tensor, active: Tensor) -> Rows:
    """One row per inner node: its state, at each place the tokens of its children.

    Args:
        batch: with its tree.
        inner: int64 [N].
        family: int64 [N, K], their children.
        active: bool [N, K, S], of `committed`.

    Returns:
        Rows whose `draw` is the node and whose `mask` holds the places at which any child counts.
    """
    tree = tree_of(batch)
    owner, ids = tree.member[inner], tree.states[inner]
    targets = torch.where(active, tree.states[family.clamp(min=0)], 0).transpose(1, 2)
    mask = active.any(1)
    places = torch.arange(ids.shape[1]).expand(ids.shape)
    return Rows(ids, targets, mask, mask.double(), owner, inner.clone(), places, batch.real[owner])
