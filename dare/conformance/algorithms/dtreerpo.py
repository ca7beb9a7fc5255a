"""dtreerpo: edges of two small trees, segment by segment, by the published trainer; its network is a 9 x 9 matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.algorithms.base import Batch, Context, Rows, Tree
from dare_bench.dare.algorithms.dtreerpo import DTreeRPO, DTreeRPOConfig
from dare_bench.dare.algorithms.trees import children
from dare_bench.dare.conformance.algorithms import _steps
from dare_bench.dare.conformance.fixture import Compared, Fixture
from torch import Tensor


def cases(data: Fixture) -> Iterator[Compared]:
    """Advantages of all edges, then the loss of each segment with its parts and gradient."""
    about = data["config"]
    batch, edges = _forest(data)
    advantages = DTreeRPO().advantages(batch)
    for number, expected in enumerate(data["segments"]):
        yield Compared(f"segment {number}: edges", expected["n_rows"], len(edges[number]))
        assert batch.trace is not None and batch.trace.tree is not None
        above = batch.trace.tree.parents[edges[number]].unique(return_inverse=True)[1]
        yield Compared(f"segment {number}: siblings", Fixture.array(expected["group_ids"]) - 2 * number, above)
        yield Compared(f"segment {number}: advantages", expected["local_advantages"], advantages[edges[number]])
        yield from _segment(data, number, expected, about, batch, edges[number], advantages)


def _forest(data: Fixture) -> tuple[Batch, list[list[int]]]:
    """The batch with the trees of both prompts, and the nodes that the edges of each segment lead to."""
    about = data["config"]
    nodes: list[Tensor] = []
    places: dict[tuple[int, ...], int] = {}
    parents: list[int] = []
    edges: list[list[int]] = []
    for number in range(len(data["segments"])):
        pairs = zip(data.tensor(f"seg{number}.parent_ids"), data.tensor(f"seg{number}.child_ids"), strict=True)
        edges.append([])
        for above, below in pairs:
            start = tuple(above.tolist())
            if start not in places:  # a root
                places[start] = len(nodes)
                nodes.append(above)
                parents.append(-1)
            places[tuple(below.tolist())] = len(nodes)
            edges[-1].append(len(nodes))
            nodes.append(below)
            parents.append(places[start])
    states = torch.stack(nodes)
    inner = set(parents)
    # Rewards are recorded leaf after leaf, the prompts of a leaf together: the order of the segments' edges.
    leaves = [node for node in range(len(nodes)) if node not in inner]
    rewards = data.tensor("leaf_rewards_leaf_major")
    ids = states[leaves]
    batch = _steps.batch_of(ids, about["prompt_len"], torch.zeros_like(ids), about["mask_id"], rewards=rewards)
    batch.eos_token_id = about["eos_id"]
    ends = (batch.ids == about["eos_id"]) & batch.response
    batch.counted = batch.response & ((ends.long().cumsum(1) - ends.long()) == 0)
    leaf = torch.full((len(nodes),), -1)
    leaf[leaves] = torch.arange(len(leaves))
    member = leaf.clamp(min=0).clone()
    for node in reversed(range(len(nodes))):
        if parents[node] >= 0:
            member[parents[node]] = member[node]
    assert batch.trace is not None
    batch.trace.tree = Tree(states, torch.tensor(parents), member, leaf)
    return batch, edges


def _segment(
    data: Fixture, number: int, expected: Any, about: Any, batch: Batch, edges: list[int], advantages: Tensor
) -> Iterator[Compared]:
    name, width, context = f"segment {number}", len(batch.ids[0]) - about["prompt_len"], _context(batch, about)
    tree = batch.trace.tree  # type: ignore[union-attr]
    algorithm = DTreeRPO(_options(about))
    rows = _steps.rows_of(algorithm, batch)
    above = tree.parents[torch.tensor(edges)]
    rows = rows.select(torch.isin(rows.draw, above).nonzero()[:, 0])
    every, family = children(tree.parents)
    row_of = {int(node): row for row, node in enumerate(rows.draw)}
    place = {int(child): (row_of[int(node)], k) for node, below in zip(every, family, strict=True)
             if int(node) in row_of for k, child in enumerate(below) if child >= 0}  # fmt: skip
    row, candidate = torch.tensor([place[edge] for edge in edges]).unbind(1)
    weight = data.tensor("W").requires_grad_()
    new = _logps(rows, weight)
    scores = {}
    for kind in ("old", "ref"):
        recorded = torch.nn.functional.pad(data.tensor(f"seg{number}.{kind}_local_logps"), (about["prompt_len"], 0))
        scores[kind] = torch.zeros_like(new).detach()
        scores[kind][row, :, candidate] = recorded
    recorded = data.tensor(f"seg{number}.new_local_logps")
    active = algorithm._active(batch, torch.tensor(edges)[:, None])[:, 0, -width:]
    yield Compared(f"{name}: places that count", recorded != 0, active)
    yield Compared(f"{name}: log-probabilities", recorded, torch.where(active, new[row, -width:, candidate], 0.0))
    lambda_now, tau = algorithm.schedule(context)
    yield Compared(f"{name}: weight of the self-distillation", expected["lambda_t"], lambda_now)
    yield Compared(f"{name}: its temperature", expected["tau_t"], tau)

    def loss(**changes: Any) -> tuple[Tensor, dict[str, float]]:
        part = DTreeRPO(_options(about, **changes))
        return part.loss(new, scores["old"], scores["ref"], rows, advantages, context)

    total, metrics = loss()
    policy, _ = loss(beta=0.0, lambda_max=0.0)
    divergence = loss(lambda_max=0.0)[0] - policy
    yield Compared(f"{name}: policy term", expected["policy_loss"], policy)
    yield Compared(f"{name}: KL term", expected["kl_term(beta included)"], divergence)
    yield Compared(f"{name}: self-distillation", expected["self_distillation_loss"], metrics["self_distillation"])
    yield Compared(f"{name}: loss", expected["loss_total"], total)
    # The trainer counts ratios outside of the range, whether clipping acts on them or not.
    ratio = (new - scores["old"]).detach()[row, -width:, candidate].exp()[active]
    high, low = (ratio > 1 + about["epsilon"], ratio < 1 - about["epsilon"])
    yield Compared(f"{name}: share above the range", expected["clip_hi"], high.double().sum() / max(len(ratio), 1))
    yield Compared(f"{name}: share below the range", expected["clip_lo"], low.double().sum() / max(len(ratio), 1))
    (gradient,) = torch.autograd.grad(total, weight)
    yield Compared(f"{name}: gradient", data.tensor(f"seg{number}.grad_W"), gradient)


def _options(about: Any, **changes: Any) -> DTreeRPOConfig:
    fields = {"levels": 2, "root_branches": about["num_tree_samples"], "branches": about["tree_branch_factor"],
              "eps_low": about["epsilon"]}  # fmt: skip
    fields |= {name: about[name] for name in ("beta", "lambda_max", "gamma", "tau_max", "beta_tau")}
    return DTreeRPOConfig(**{**fields, **changes})


def _context(batch: Batch, about: Any) -> Context:
    return Context(0, step=round(about["progress"] * 100), total_steps=100, batch=batch)


def _logps(rows: Rows, weight: Tensor) -> Tensor:
    """Log-probabilities [N, S, K] under the recorded network: one-hot neighbours (in a ring) and half the token, times W."""
    hot = torch.nn.functional.one_hot(rows.ids, len(weight)).to(weight.dtype)
    logits = (hot.roll(1, 1) + hot.roll(-1, 1) + 0.5 * hot) @ weight
    return logits.log_softmax(-1).gather(-1, rows.targets)
