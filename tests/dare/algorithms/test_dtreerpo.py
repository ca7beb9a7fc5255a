"""d-TreeRPO: values and advantages of nodes, edges as rows, self-distillation, schedules and segments."""

from __future__ import annotations

import math

import pytest
import torch
from dare_bench.dare.algorithms import distillation, registry, trees
from dare_bench.dare.algorithms.base import Context, Needs
from dare_bench.dare.algorithms.dtreerpo import DTreeRPO, DTreeRPOConfig
from dare_bench.dare.algorithms.objectives import ppo_token_loss

NEEDS = Needs(rollout="tree")


def rows_of(algorithm, batch, **context):
    context = Context(0, batch=batch, **context)
    (rows,) = algorithm.rows(batch, context)
    return rows, context


def scores(rows, shift=0.0):
    value = -1.5 - 0.3 * (rows.targets * 0.7 + rows.position_ids[..., None] * 0.3 + shift).double().sin()
    return torch.where(rows.mask[..., None], value, 0.0)


def test_values_and_advantages(rolled):
    batch = rolled(NEEDS)
    tree = batch.trace.tree
    value = trees.values(batch.rewards, tree.parents, tree.leaf)
    for root, group in ((0, 0), (7, 1)):
        assert value[root] == batch.rewards[batch.groups == group].mean()
    found = DTreeRPO().advantages(batch)
    assert found.shape == (14,)
    for below in trees.children(tree.parents)[1]:
        assert found[below].sum().abs() < 1e-12
    # rewards 1, 0 | 0.5, 0: nodes worth 0.5 and 0.25
    assert found[:7].tolist() == [0.0, 0.25, 1.0, -1.0, -0.25, 0.5, -0.5]


def test_children_are_listed_under_their_parents():
    inner, family = trees.children(torch.tensor([-1, 0, 0, 0, 1, 1, 2]))
    assert inner.tolist() == [0, 1, 2]
    assert family.tolist() == [[1, 2, 3], [4, 5, -1], [6, -1, -1]]
    value = torch.tensor([0.0, 3.0, 1.0, 2.0, 5.0, 5.0, 1.0])
    assert trees.sibling_advantages(value, torch.tensor([-1, 0, 0, 0, 1, 1, 2])).tolist() == [0, 1.5, -1.5, 0, 0, 0, 0]


def test_rows_score_the_tokens_of_an_edge_in_the_parents_state(rolled):
    batch = rolled(NEEDS)
    tree = batch.trace.tree
    rows, _ = rows_of(DTreeRPO(DTreeRPOConfig(counted="canvas")), batch)
    assert rows.draw.tolist() == [0, 1, 4, 7, 8, 11]
    assert torch.equal(rows.ids, tree.states[rows.draw])
    assert torch.equal(rows.mask, (rows.ids == 63) & ~(tree.states == 63)[trees.children(tree.parents)[1][:, 0]])
    for row, node in enumerate(rows.draw.tolist()):
        for candidate, child in enumerate((tree.parents == node).nonzero()[:, 0].tolist()):
            where = rows.mask[row]
            assert torch.equal(rows.targets[row, where, candidate], tree.states[child, where])
    seen = torch.zeros_like(batch.ids)
    for row, owner in enumerate(rows.owner.tolist()):
        seen[owner] += rows.mask[row].long()
    assert int(seen.sum()) == int(rows.mask.sum())


def test_only_tokens_through_the_childs_stop_token_count(rolled):
    batch = rolled(NEEDS)
    tree = batch.trace.tree
    place = int((tree.states[1] != tree.states[0]).nonzero()[0])
    tree.states[1, place] = batch.eos_token_id
    batch.counted = batch.response
    inner, family = trees.children(tree.parents)
    active = trees.committed(batch, family, through_stop=True)
    assert active[0, 0].nonzero()[:, 0].tolist() == [place]
    assert active[0, 1].sum() == (tree.states[4] != tree.states[0]).sum()
    tree.counted = torch.zeros_like(tree.states, dtype=torch.bool)  # what the rollout knows comes first
    assert not trees.committed(batch, family, through_stop=True)[0].any()
    assert inner[0] == 0


def test_one_level_is_one_step_with_leave_one_out(rolled):
    """From the root to the leaves at once: the fully masked completion, token by token."""
    batch = rolled(NEEDS)
    tree = batch.trace.tree
    kept = (tree.parents < 0) | (tree.leaf >= 0)
    roots = torch.tensor([0, 5])
    tree.states, tree.member, tree.leaf = tree.states[kept], tree.member[kept], tree.leaf[kept]
    tree.parents = torch.where(tree.leaf < 0, -1, roots[batch.groups[tree.leaf.clamp(min=0)]])
    algorithm = DTreeRPO(DTreeRPOConfig(levels=1, counted="canvas", beta=0.0, lambda_max=0.0))
    rows, context = rows_of(algorithm, batch)
    assert torch.equal(rows.mask, batch.response[[0, 4]])
    new, old = scores(rows), scores(rows, 0.4)
    loss, _ = algorithm.loss(new, old, None, rows, algorithm.advantages(batch), context)
    expected = []
    for leaf in range(8):
        others = [other for other in range(8) if other != leaf and batch.groups[other] == batch.groups[leaf]]
        advantage = batch.rewards[leaf] - batch.rewards[others].mean()
        row, candidate = leaf // 4, leaf % 4
        where = rows.mask[row]
        tokens = ppo_token_loss(new[row, where, candidate], old[row, where, candidate], advantage, eps_low=0.4)
        expected.append(tokens.mean())
    assert loss.item() == pytest.approx(torch.stack(expected).mean().item(), abs=1e-12)


def test_no_advantage_leaves_nothing_of_policy_and_distillation(rolled):
    batch = rolled(NEEDS)
    batch.rewards = torch.full_like(batch.rewards, 0.3)
    algorithm = DTreeRPO(DTreeRPOConfig(beta=0.0, lambda_max=1.0, counted="canvas"))
    rows, context = rows_of(algorithm, batch, step=5, total_steps=10)
    new = scores(rows).requires_grad_()
    loss, metrics = algorithm.loss(new, scores(rows, 0.2), None, rows, algorithm.advantages(batch), context)
    assert loss == 0 == metrics["self_distillation"]
    assert not torch.autograd.grad(loss, new)[0].any()


class TestDistillation:
    targets = torch.tensor([[[3, 3, 5], [1, 2, 0]]])
    active = torch.tensor([[[True, True], [True, True], [True, False]]])
    advantage = torch.tensor([[0.5, 0.2, 0.3]])

    def term(self, new, advantage=None, tau=0.7):
        given = self.advantage if advantage is None else advantage
        return distillation.distillation(new, self.targets, self.active, given, tau).item()

    def q(self, tau=0.7):
        weight = (self.advantage[0].double() / tau).softmax(0).tolist()
        two = weight[0] + weight[1]
        return [(weight[0] + weight[1]), weight[2]], [weight[0] / two, weight[1] / two]

    def test_zero_where_the_prediction_is_the_target(self):
        (three, five), (one, two) = self.q()
        new = torch.tensor([[[three, three, five], [one, two, 1.0]]]).double().log()
        assert self.term(new) == pytest.approx(0.0, abs=1e-12)

    def test_by_hand_and_never_negative(self):
        generator = torch.Generator().manual_seed(0)
        (three, five), (one, two) = self.q()
        for _ in range(20):
            logits = torch.randn(1, 2, 6, generator=generator, dtype=torch.float64)
            new = logits.log_softmax(-1).gather(-1, self.targets)
            expected = three * (math.log(three) - new[0, 0, 0]) + five * (math.log(five) - new[0, 0, 2])
            expected += one * (math.log(one) - new[0, 1, 0]) + two * (math.log(two) - new[0, 1, 1])
            assert self.term(new) == pytest.approx(float(expected) / 2, abs=1e-12)
            assert self.term(new) >= 0

    def test_children_without_a_positive_advantage_are_left_out(self):
        new = torch.full((1, 2, 3), -2.0, dtype=torch.float64)
        assert self.term(new, torch.tensor([[-0.1, 0.0, -3.0]])) == 0.0
        alone = self.term(new, torch.tensor([[-0.1, 0.2, 0.0]]))
        assert alone == pytest.approx(2.0)  # log 1 + 2 at either place

    def test_a_cold_temperature_is_finite(self):
        new = torch.full((1, 2, 3), -50.0, dtype=torch.float64, requires_grad=True)
        loss = distillation.distillation(new, self.targets, self.active, self.advantage, 1e-6)
        (gradient,) = torch.autograd.grad(loss, new)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()


def test_schedules():
    algorithm = DTreeRPO(DTreeRPOConfig(lambda_max=0.3, inner_iterations=2))
    assert algorithm.schedule(Context(0, 0, 10)) == (0.0, 2.0)
    weight, tau = algorithm.schedule(Context(0, 5, 10, 0, 2))
    assert weight == pytest.approx(0.3)
    assert tau == 1e-6
    weight, tau = algorithm.schedule(Context(0, 2, 10, 0, 2))  # four optimiser steps of ten
    assert weight == pytest.approx(0.05754563316626329)
    assert tau == pytest.approx(1.3987363808288589)
    assert algorithm.schedule(Context(0, 2, 10, 1, 2))[0] > weight


def test_segments_visit_every_inner_node_equally_often(rolled):
    batch = rolled(NEEDS)
    options = DTreeRPOConfig(root_branches=2, branches=2, segments="parent", inner_iterations=6, counted="canvas")
    algorithm, seen = DTreeRPO(options), []
    for inner in range(6):
        rows, _ = rows_of(algorithm, batch, inner=inner, inner_iterations=6)
        seen.append(rows.draw.tolist())
        assert rows.draw[1] == rows.draw[0] + 7  # the same place in both trees
    assert seen[0::2] == seen[1::2]
    assert sorted(nodes[0] for nodes in seen) == [0, 0, 1, 1, 4, 4]
    orders = {tuple(rows_of(algorithm, batch, inner=inner, inner_iterations=6, step=step)[0].draw[0].item()
                    for inner in range(6)) for step in range(8)}  # fmt: skip
    assert len(orders) > 1


def test_shape_and_settings():
    config = DTreeRPOConfig()
    assert (config.group_size, config.shape.parents) == (16, 5)
    assert DTreeRPOConfig(levels=3, root_branches=3, branches=2).group_size == 12
    assert DTreeRPOConfig(levels=3, root_branches=3, branches=2).shape.parents == 10
    for fields, said in [
        ({"branches": 1}, "branches: 1; allowed: at least 2"),
        ({"segments": "some"}, "segments: 'some'; allowed: all, parent"),
        ({"segments": "parent"}, "inner_iterations: 1; allowed with segments: 'parent': at least 5"),
        ({"gamma": 0.0}, "gamma: 0.0; allowed: above 0"),
        ({"kl": "k4"}, "kl: 'k4'; allowed: k1, k2, k3"),
    ]:
        with pytest.raises(ValueError, match=said):
            DTreeRPOConfig(**fields)


def test_a_batch_without_a_tree_is_refused(make_batch):
    with pytest.raises(ValueError, match="trace: no tree"):
        DTreeRPO().advantages(make_batch([2], [3], rewards=[1.0]))


def test_registered():
    entry = registry.get("dtreerpo", "llada_moe")
    assert entry.families == {"dream", "llada", "llada_moe"}
    assert entry.needs.rollout == "tree"
    for preset in entry.presets.values():
        assert entry.config_class(**preset).group_size == 16
    assert DTreeRPO(DTreeRPOConfig(beta=0.0)).needs.ref == "none"
