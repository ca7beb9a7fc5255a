"""Laws of every registered algorithm with rows: a new one is held to them by being registered."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Batch, Context
from dare_bench.dare.algorithms.rows import Rows
from dare_bench.dare.diffusion.block import concatenate
from dare_bench.dare.training import replay
from torch import Tensor

GROUP = 4
#: Options under which a law is meant: with no divergence and no auxiliary term, advantages of zero leave nothing.
PLAIN: dict[str, dict[str, Any]] = {"dtreerpo": {"lambda_max": 0.0}}
#: Names of the option that sets Monte-Carlo draws per response.
DRAWS = ("draws", "pairs", "num_draws", "mc_draws", "samples", "mc_samples")
FIELDS = ("ids", "targets", "mask", "weight", "owner", "draw", "position_ids", "real", "context", "context_real")

ENTRIES = [
    entry
    for entries in registry.algorithms().values()
    for entry in entries
    if hasattr(entry.cls, "rows") and hasattr(entry.cls, "loss")
]
CASES = [
    pytest.param(entry, family, id=f"{entry.name}-{family}")
    for entry in ENTRIES
    for family in ("llada", "sdar")
    if family in entry.families
]
GRADED = [case for case in CASES if case.values[0].needs.rollout != "none"]


def options_of(entry, **changes):
    names = {field.name for field in dataclasses.fields(entry.config_class)}
    wanted = {"group_size": GROUP, "inner_iterations": 2, **PLAIN.get(entry.name, {}), **changes}
    return entry.config_class(**{name: value for name, value in wanted.items() if name in names})


def draws_field(entry):
    names = [field.name for field in dataclasses.fields(entry.config_class) if field.name in DRAWS]
    return names[0] if names else None


class Setting:
    """One algorithm on one batch; log-probabilities are a function of (response, draw, place, token) alone."""

    def __init__(self, entry, family, rolled, *, batch: dict[str, Any] | None = None, **changes: Any) -> None:
        self.entry = entry
        self.algorithm = entry.cls(options_of(entry, **changes))
        self.needs = self.algorithm.needs
        self.batch: Batch = rolled(self.needs, 4 if family == "sdar" else 0, **(batch or {}))
        self.context = Context(3, step=1, total_steps=10, inner_iterations=2, batch=self.batch)
        self.advantages: Tensor = self.algorithm.advantages(self.batch)

    def parts(self) -> list[Rows]:
        return list(self.algorithm.rows(self.batch, self.context))

    def groups(self) -> list[Rows]:
        """What one call of `loss` gets: all rows, or one part of a separable algorithm."""
        parts = self.parts()
        return parts if self.algorithm.separable else [concatenate(parts)]

    def scores(self, rows: Rows, kind: str) -> Tensor | None:
        if (kind == "old" and not self.needs.old) or (kind == "ref" and self.needs.ref == "none"):
            return None
        place = rows.position_ids[..., None] * 0.37 + rows.targets * 0.11
        row = (rows.owner * 1.7 + rows.draw * 0.9)[:, None, None]
        shift = {"new": 0.0, "old": 0.6, "ref": 1.1}[kind]
        value = -1.5 - (place + row + shift).double().sin() - 0.2 * (place * 3 + row + 7 * shift).double().cos()
        return torch.where(rows.mask[..., None], value, 0.0)

    def loss(self, rows: Rows, new: Tensor, old: Tensor | None, ref: Tensor | None, advantages: Tensor | None = None):
        before = new.detach() if old is None else old
        given = self.advantages if advantages is None else advantages
        return self.algorithm.loss(new, before, ref, rows, given, self.context)

    def gradients(self, rows: Rows, **given: Any) -> tuple[float, dict[str, float], Tensor]:
        """Loss, metrics and the gradient with respect to the log-probabilities of some rows."""
        new = self.scores(rows, "new").requires_grad_()
        loss, metrics = self.loss(rows, new, self.scores(rows, "old"), self.scores(rows, "ref"), **given)
        (gradient,) = torch.autograd.grad(loss, new, allow_unused=True)
        return float(loss.detach()), metrics, torch.zeros_like(new) if gradient is None else gradient

    def by_place(self) -> dict[tuple[int, ...], Tensor]:
        """(response, draw, place, token) -> gradient, where it is not zero."""
        found: dict[tuple[int, ...], float] = {}
        for rows in self.groups():
            gradient = self.gradients(rows)[2]
            for n, s, k in gradient.nonzero().tolist():
                key = (int(rows.owner[n]), int(rows.draw[n]), int(rows.position_ids[n, s]), int(rows.targets[n, s, k]))
                found[key] = found.get(key, 0.0) + float(gradient[n, s, k])
        return found


@pytest.fixture
def setting(rolled):
    return lambda entry, family, **options: Setting(entry, family, rolled, **options)


def test_every_algorithm_with_rows_is_here():
    names = {entry.name for entry in ENTRIES}
    assert {"sft", "d1", "trace_rl", "cj_grpo", "justgrpo"} <= names
    assert len(CASES) >= 2 * len(names) - 6  # some are sound for one kind of attention alone


@pytest.mark.parametrize(("entry", "family"), GRADED)
def test_no_advantage_no_gradient(setting, entry, family):
    """Equal rewards (beta 0, no auxiliary term): the gradient is exactly zero."""
    found = setting(entry, family, beta=0.0)
    found.batch.rewards = torch.full_like(found.batch.rewards, 0.5)
    found.batch.trace.steps.rewards = torch.full_like(found.batch.trace.steps.rewards, 0.5)
    found.advantages = found.algorithm.advantages(found.batch)
    assert not found.advantages.any()
    for rows in found.groups():
        _, _, gradient = found.gradients(rows)
        assert not gradient.any()


@pytest.mark.parametrize(("entry", "family"), GRADED)
def test_rewards_give_a_gradient(setting, entry, family):
    found = setting(entry, family)
    assert sum(float(found.gradients(rows)[2].abs().sum()) for rows in found.groups()) > 1e-3


@pytest.mark.parametrize(("entry", "family"), [case for case in GRADED if case.values[0].needs.old])
def test_the_ratio_is_one_at_the_first_inner_step(setting, entry, family):
    found = setting(entry, family)
    for rows in found.groups():
        if not rows.mask.any():
            continue
        new = found.scores(rows, "new").requires_grad_()
        _, metrics = found.loss(rows, new, new.detach(), found.scores(rows, "ref"))
        assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-12)
        assert metrics["clip_fraction"] == 0.0


@pytest.mark.parametrize(("entry", "family"), CASES)
def test_equal_seed_equal_rows(setting, entry, family):
    state = torch.get_rng_state()
    found = setting(entry, family)
    first, again = found.parts(), found.parts()
    assert len(first) == len(again) > 0
    for one, two in zip(first, again, strict=True):
        for name in FIELDS:
            value = getattr(one, name)
            assert value is None or torch.equal(value, getattr(two, name)), name
        assert (one.layout, one.block_length, one.temperature) == (two.layout, two.block_length, two.temperature)
        assert not one.weight[~one.mask].any() or bool(torch.isfinite(one.weight).all())
        assert one.mask.shape == one.ids.shape == one.targets.shape[:2]
        assert not (one.mask & ~one.real).any()
    assert torch.equal(torch.get_rng_state(), state), "the global generator was used"


def take(batch: Batch, group: int) -> Batch:
    """The responses of one prompt (or of its pairs) alone."""
    rows = slice(group * GROUP, (group + 1) * GROUP)
    width = int(batch.lengths[rows].max())
    cut = {"ids": batch.ids[rows, :width], "counted": batch.counted[rows, :width]}
    for name in ("prompt_lengths", "lengths", "rewards", "chosen"):
        value = getattr(batch, name)
        cut[name] = None if value is None else value[rows]
    groups = batch.groups[rows] - batch.groups[rows].min()
    part = replace(batch, sample_ids=batch.sample_ids[rows], groups=groups, **cut)
    if batch.trace is None:
        return part
    trace = batch.trace
    steps = replace(trace.steps, **{name: getattr(trace.steps, name)[rows] for name in ("inputs", "guesses", "confidence")},
                    rewards=trace.steps.rewards[rows])  # fmt: skip
    for name in ("inputs", "guesses", "confidence"):
        setattr(steps, name, getattr(steps, name)[..., :width])
    tree = trace.tree
    if tree is not None:
        nodes = slice(group * 7, (group + 1) * 7)
        parents, leaf = tree.parents[nodes], tree.leaf[nodes]
        tree = replace(
            tree,
            states=tree.states[nodes, :width],
            parents=torch.where(parents >= 0, parents - group * 7, -1),
            member=tree.member[nodes] - group * GROUP,
            leaf=torch.where(leaf >= 0, leaf - group * GROUP, -1),
        )
    part.trace = replace(trace, step_map=trace.step_map[rows, :width], blocks=trace.blocks[rows, :width], steps=steps,
                         tree=tree)  # fmt: skip
    return part


def fed(parts: list[Rows], owners: set[int], first: int) -> list[Any]:
    """What the network reads and is scored on for some responses, in an order of its own."""
    found = []
    for rows in parts:
        for n in range(len(rows)):
            if int(rows.owner[n]) in owners:
                real, mask = rows.real[n], rows.mask[n]
                clean = None if rows.context is None else rows.context[n][rows.context_real[n]].tolist()
                targets = rows.targets[n][mask].tolist()
                found.append((int(rows.owner[n]) - first, rows.ids[n][real].tolist(),
                              rows.position_ids[n][real].tolist(), rows.position_ids[n][mask].tolist(), targets,
                              clean))  # fmt: skip
    return sorted(found, key=repr)


@pytest.mark.parametrize(("entry", "family"), CASES)
@pytest.mark.parametrize("group", [0, 1])
def test_draws_of_a_group_do_not_depend_on_the_others(setting, entry, family, group):
    whole = setting(entry, family, **({"split_rows": False} if entry.name == "trace_rl" else {}))
    alone = take(whole.batch, group)
    parts = list(whole.algorithm.rows(alone, replace(whole.context, batch=alone)))
    owners = set(range(group * GROUP, (group + 1) * GROUP))
    assert fed(parts, set(range(GROUP)), 0) == fed(whole.parts(), owners, group * GROUP)


@pytest.mark.parametrize(("entry", "family"), CASES)
def test_row_order_changes_nothing(setting, entry, family):
    found = setting(entry, family)
    for rows in found.groups():
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
        loss, _, gradient = found.gradients(rows)
        turned, _, other = found.gradients(rows.select(order))
        assert turned == pytest.approx(loss, rel=1e-9, abs=1e-12)
        torch.testing.assert_close(other, gradient[order][:, : other.shape[1]], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("entry", "family"), GRADED)
def test_uncounted_responses_change_nothing(setting, entry, family):
    """A third prompt without counted tokens: every gradient stays, or all shrink by the number of responses or prompts."""
    before, after = (setting(entry, family, batch={"uncounted": more}, counted="eos") for more in (False, True))
    after.advantages = torch.cat([before.advantages, torch.zeros_like(after.advantages[len(before.advantages) :])])
    one, two = before.by_place(), after.by_place()
    assert set(two) == set(one)
    factors = {two[key] / one[key] for key in one}
    assert max(factors) - min(factors) < 1e-9
    assert min(abs(max(factors) - allowed) for allowed in (1.0, 2 / 3)) < 1e-6


@pytest.mark.parametrize(("entry", "family"), [case for case in CASES if not case.values[0].needs.pairs])
def test_nothing_counted_is_a_loss_of_zero(setting, entry, family):
    found = setting(entry, family, counted="eos")
    found.batch.counted = torch.zeros_like(found.batch.counted)
    for rows in found.groups() if found.parts() else []:
        loss, metrics, gradient = found.gradients(rows)
        assert loss == 0.0
        assert not gradient.any()
        assert all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(("entry", "family"), CASES)
@pytest.mark.parametrize("difference", [-50.0, 50.0])
def test_extreme_differences_are_finite(setting, entry, family, difference):
    found = setting(entry, family)
    for rows in found.groups():
        new = torch.where(rows.mask[..., None].expand_as(rows.targets), -60.0, 0.0).double().requires_grad_()
        other = torch.where(rows.mask[..., None], new.detach() - difference, 0.0)
        loss, metrics = found.loss(
            rows, new, other if found.needs.old else None, None if found.needs.ref == "none" else other
        )
        (gradient,) = torch.autograd.grad(loss, new, allow_unused=True)
        assert torch.isfinite(loss)
        assert gradient is None or torch.isfinite(gradient).all()
        assert all(math.isfinite(value) for value in metrics.values())


def weights_of(lm: Any) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in lm.model.named_parameters() if p.grad is not None}
    lm.model.zero_grad()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "family"), CASES)
def test_replayed_gradient_is_the_direct_one(setting, tiny, entry, family):
    found, lm = setting(entry, family, batch={"equal": True}), tiny(family)
    parts, scores = found.groups(), {}
    for kind in ("old", "ref"):  # near the policy's own, as after some inner steps
        scores[kind] = None
        if found.scores(parts[0], kind) is not None:
            scores[kind] = [
                replay.score_all(lm, rows, None)
                + 0.1 * torch.where(rows.mask[..., None], found.scores(rows, kind) + 1, 0)
                for rows in parts
            ]
    for number, rows in enumerate(parts):
        old, ref = (scores[kind] and scores[kind][number] for kind in ("old", "ref"))
        loss, _ = found.loss(rows, replay.score(lm, rows), old, ref)
        loss.backward()
    direct = weights_of(lm)
    assert max(float(value.abs().max()) for value in direct.values()) > 1e-6
    for micro_rows in (1, 3, None):
        replay.backward(
            lm, found.algorithm, iter(parts), found.advantages, found.context, old=scores["old"], ref=scores["ref"],
            micro_rows=micro_rows,
        )  # fmt: skip
        again = weights_of(lm)
        assert set(again) == set(direct)
        for name, value in direct.items():
            scale = float(value.abs().max())
            assert float((again[name] - value).abs().max()) <= 1e-5 * scale + 1e-14, (micro_rows, name)


class Live:
    """Bytes that autograd keeps for a backward pass, and their peak."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def pack(self, tensor: Tensor) -> SimpleNamespace:
        return _Kept(self, tensor)


class _Kept:
    def __init__(self, live: Live, tensor: Tensor) -> None:
        self.live, self.tensor = live, tensor
        self.bytes = tensor.numel() * tensor.element_size()
        live.now += self.bytes
        live.peak = max(live.peak, live.now)

    def __del__(self) -> None:
        self.live.now -= self.bytes


def peaks(found: Setting, lm: Any, counts: Iterator[int]) -> list[int]:
    out = []
    for count in counts:
        field = draws_field(found.entry)
        found.algorithm = found.entry.cls(options_of(found.entry, **{field: count}))
        live = Live()
        with torch.autograd.graph.saved_tensors_hooks(live.pack, lambda kept: kept.tensor):
            replay.backward(
                lm, found.algorithm, found.algorithm.rows(found.batch, found.context), found.advantages, found.context,
                ref=[torch.where(rows.mask[..., None], -1.0, 0.0).expand_as(rows.targets) for rows in found.parts()]
                if found.algorithm.needs.ref != "none" else None,
                micro_rows=GROUP,
            )  # fmt: skip
        lm.model.zero_grad()
        assert live.now == 0
        out.append(live.peak)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "family"), [case for case in CASES if draws_field(case.values[0])])
def test_memory_does_not_grow_with_the_draws(setting, tiny, entry, family):
    """32 draws need at most 1.2 times what the fewest that the algorithm accepts need (1, or 2)."""
    # Responses of one length: else more rows alone would fill a micro-batch with the longest of them.
    found, lm = setting(entry, family, batch={"equal": True}), tiny(family, dtype=torch.float32)
    field = draws_field(entry)
    try:
        options_of(entry, **{field: 1})
        fewest = 1
    except ValueError:
        fewest = 2
    few, many = peaks(found, lm, iter((fewest, 32)))
    assert few > 0
    assert many <= 1.2 * few, (few, many)
