"""Selection rules equal the plain loops, stay inside their candidates, and treat rows alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from dare_bench.kernels import select, select_reference
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

# Multiples of 1/8, so that ties are common, sums are exact and thresholds are hit.
PROBABILITIES = st.integers(0, 8).map(lambda value: value / 8)
ENTROPIES = st.integers(0, 12).map(lambda value: value / 8)


@dataclass(frozen=True)
class Case:
    """Values and candidates of a batch of blocks."""

    values: Tensor
    other: Tensor
    candidates: Tensor
    uniforms: Tensor
    counts: Tensor

    def row(self, index: int) -> Case:
        return self.pick(slice(index, index + 1))

    def pick(self, index: slice | Tensor) -> Case:
        return Case(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows, length = draw(st.integers(0, 4)), draw(st.integers(1, 8))

    def table(element: st.SearchStrategy) -> list:
        return draw(st.lists(st.lists(element, min_size=length, max_size=length), min_size=rows, max_size=rows))

    return Case(
        torch.tensor(table(ENTROPIES)).view(rows, length),
        torch.tensor(table(PROBABILITIES)).view(rows, length),
        torch.tensor(table(st.booleans()), dtype=torch.bool).view(rows, length),
        torch.tensor(table(st.floats(0.001, 0.999)), dtype=torch.float64).view(rows, length),
        torch.tensor(draw(st.lists(st.integers(-1, 9), min_size=rows, max_size=rows)), dtype=torch.int64),
    )


def rules(module, parameter: float) -> dict[str, Callable[[Case], Tensor]]:
    """Each rule on a case; `parameter` in (0, 2)."""
    return {
        "factor": lambda c: module.select_factor(c.other, c.candidates, parameter),
        "factor published": lambda c: module.select_factor(c.other, c.candidates, parameter, commits_failing_last=True),
        "entropy sum": lambda c: module.select_entropy_sum(c.values, c.candidates, parameter),
        "entropy bound": lambda c: module.select_entropy_bound(c.values, c.candidates, parameter),
        "entropy bound by probability": lambda c: module.select_entropy_bound(
            c.values, c.candidates, parameter, error=-c.other
        ),
        "hierarchy": lambda c: module.select_hierarchy(c.other, c.candidates, min(parameter, 1.0), parameter / 4),
        "first": lambda c: module.select_first(c.candidates, c.counts),
        "draw": lambda c: module.draw_without_replacement(c.other, c.candidates, c.uniforms, c.counts),
    }


NAMES = sorted(rules(select, 1.0))
COUNTED = ("first", "draw")
PARAMETERS = st.sampled_from([0.125, 0.375, 0.5, 1.0, 1.5])


@pytest.mark.parametrize("name", NAMES)
@given(case=cases(), parameter=PARAMETERS)
@settings(deadline=None)
def test_equals_the_loop(name, case, parameter):
    selected = rules(select, parameter)[name](case)
    assert torch.equal(selected, rules(select_reference, parameter)[name](case))
    assert selected.dtype == torch.bool and not (selected & ~case.candidates).any()
    if name in COUNTED:
        assert torch.equal(selected.sum(1), torch.minimum(case.counts.clamp(min=0), case.candidates.sum(1)))
    else:
        assert torch.equal(selected.any(1), case.candidates.any(1))  # at least one, so that a block always ends


@pytest.mark.parametrize("name", NAMES)
@given(case=cases(), parameter=PARAMETERS, seed=st.integers(0, 99))
@settings(deadline=None)
def test_rows_do_not_know_of_each_other(name, case, parameter, seed):
    rule = rules(select, parameter)[name]
    together = rule(case)
    for row in range(len(together)):
        assert torch.equal(rule(case.row(row)), together[row : row + 1])
    order = torch.randperm(len(together), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(rule(case.pick(order)), together[order])


@pytest.mark.parametrize("name", NAMES)
@given(case=cases(), parameter=PARAMETERS)
@settings(deadline=None)
def test_values_outside_the_candidates_do_not_matter(name, case, parameter):
    rule = rules(select, parameter)[name]
    disturbed = Case(
        case.values.masked_fill(~case.candidates, 0.0),
        case.other.masked_fill(~case.candidates, float("inf")),
        case.candidates,
        case.uniforms.masked_fill(~case.candidates, 0.5),
        case.counts,
    )
    assert torch.equal(rule(disturbed), rule(case))


@given(case=cases(), low=st.floats(0.1, 2), high=st.floats(0.1, 2))
@settings(deadline=None)
def test_looser_parameters_select_more(case, low, high):
    low, high = sorted((low, high))
    for name in ("factor", "entropy sum", "entropy bound"):
        tight, loose = (rules(select, value)[name](case) for value in (low, high))
        assert not (tight & ~loose).any(), name
    tight = select.select_hierarchy(case.other, case.candidates, high / 2, low / 2)
    loose = select.select_hierarchy(case.other, case.candidates, low / 2, low / 4)
    assert not (tight & ~loose).any()


@given(case=cases(), parameter=PARAMETERS)
@settings(deadline=None)
def test_the_two_entropy_rules(case, parameter):
    # The sum without its largest entry is never more than the sum: the bound selects at least as much.
    summed = select.select_entropy_sum(case.values, case.candidates, parameter)
    bound = select.select_entropy_bound(case.values, case.candidates, parameter)
    assert not (summed & ~bound).any()
    for row in bound.nonzero()[:, 0].unique().tolist():
        chosen = case.values[row][bound[row]].double()
        assert float(chosen.sum() - chosen.max()) <= parameter


@given(case=cases(), parameter=PARAMETERS)
@settings(deadline=None)
def test_the_published_factor_rule_adds_the_last_failing_candidate_only(case, parameter):
    rule = select.select_factor(case.other, case.candidates, parameter)
    published = select.select_factor(case.other, case.candidates, parameter, commits_failing_last=True)
    added = (published & ~rule).sum(1)
    assert torch.equal(added, (case.candidates.sum(1) - rule.sum(1) == 1).long())
    two = case.candidates.sum(1) == 2
    assert torch.equal(published[two], case.candidates[two])  # with two masks left it commits both


def table(*lines: str) -> Tensor:
    return torch.tensor([[mark != "." for mark in line] for line in lines])


def test_factor_by_hand():
    # ranks 2, 3, 4 need 1 - 1/3, 1 - 1/4, 1 - 1/5
    confidence = torch.tensor(
        [[0.8, 0.1, 0.67, 0.75], [0.9, 0.6, 0.9, 0.9], [0.0, 0.0, 0.0, 0.0], [0.6, 0.3, 0.0, 0.0]]
    )
    candidates = table("xxxx", "xxxx", "..x.", "xx..")
    assert torch.equal(select.select_factor(confidence, candidates, 1.0), table("x..x", "x.xx", "..x.", "x..."))
    published = select.select_factor(confidence, candidates, 1.0, commits_failing_last=True)
    assert torch.equal(published, table("x..x", "xxxx", "..x.", "xx.."))


def test_entropy_rules_by_hand():
    entropy = torch.tensor([[0.5, 0.125, 0.25, 1.0], [2.0, 3.0, 0.0, 0.0]], dtype=torch.float64)
    candidates = table("xxxx", "xx..")
    # sums 0.125, 0.375, 0.875, 1.875
    assert torch.equal(select.select_entropy_sum(entropy, candidates, 0.375), table(".x..", "x..."))  # below, not at
    assert torch.equal(select.select_entropy_sum(entropy, candidates, 0.376), table(".xx.", "x..."))
    # sums without the largest 0, 0.125, 0.375, 0.875
    assert torch.equal(select.select_entropy_bound(entropy, candidates, 0.375), table("xxx.", "x..."))
    assert torch.equal(select.select_entropy_bound(entropy, candidates, 0.0), table(".x..", "x..."))
    assert torch.equal(select.select_entropy_bound(entropy, candidates, 2.0), table("xxxx", "xx.."))


def test_hierarchy_by_hand():
    confidence = torch.tensor(
        [[0.45, 0.5, 0.0, 0.3, 0.2, 0.9, 0.85, 0.86], [0.3, 0.2, 0.35, 0.99, 0.1, 0.1, 0.35, 0.0]]
    )
    candidates = table("xx.xx.xx", "xxx.xxx.")
    # runs 0-1, 3-4, 6-7: the best above 0.4 are 1 and 7, 6 is above 0.8 itself; nothing is sure in the second row
    found = select.select_hierarchy(confidence, candidates, 0.8, 0.4)
    assert torch.equal(found, table(".x....xx", "..x....."))
    assert torch.equal(select.select_hierarchy(confidence, candidates, 0.86, 0.4), table(".x.....x", "..x....."))
    # strict: equality is not enough, except for the best of the row
    assert torch.equal(select.select_hierarchy(confidence, candidates, 0.9, 0.35), table(".x.....x", "..x....."))


def test_ties_go_to_the_lower_position():
    same, every = torch.full((1, 6), 0.5), torch.ones(1, 6, dtype=torch.bool)
    assert torch.equal(select.select_factor(same, every, 0.1), table("x....."))
    assert torch.equal(select.select_entropy_sum(same, every, 1.25), table("xx...."))
    assert torch.equal(select.select_entropy_bound(same, every, 0.5), table("xx...."))
    assert torch.equal(select.select_hierarchy(same, table("xx.xxx"), 0.9, 0.4), table("x..x.."))
    assert torch.equal(select.select_hierarchy(same, table("xx.xxx"), 0.9, 0.6), table("x....."))


def test_bernoulli_is_strict_and_inside():
    uniforms = torch.tensor([[0.0, 0.25, 0.5, 0.999999]], dtype=torch.float64).expand(3, 4)
    found = select.select_bernoulli(uniforms, table("xxxx", ".xxx", "xx.x"), torch.tensor([0.5, 0.0, 1.0]))
    assert torch.equal(found, table("xx..", "....", "xx.x"))


def test_draws_follow_their_weights():
    weights = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    rows = 40_000
    uniforms = torch.rand(rows, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).clamp(1e-12)
    every = torch.ones(rows, 4, dtype=torch.bool)
    drawn = select.draw_without_replacement(weights.log().expand(rows, 4), every, uniforms, torch.full((rows,), 2))
    wanted = torch.tensor(
        [float(sum(p * q / (1 - p) for j, p in enumerate(weights) if j != i) + q) for i, q in enumerate(weights)]
    )
    assert float((drawn.double().mean(0) - wanted).abs().max()) < 0.01  # about four standard errors


def test_no_weight_vanishes_in_a_draw():
    scores = torch.tensor([[0.0, -5000.0, -4000.0, -1e6]])
    uniforms = torch.full((1, 4), 0.5, dtype=torch.float64)
    every = torch.ones(1, 4, dtype=torch.bool)
    found = select.draw_without_replacement(scores, every, uniforms, torch.tensor([3]))
    assert torch.equal(found, table("xxx."))


def test_errors_name_what_was_given():
    with pytest.raises(ValueError, match=r"candidates bool, got torch.float32 and torch.int64"):
        select.select_factor(torch.zeros(1, 2), torch.ones(1, 2).long(), 1.0)
    with pytest.raises(ValueError, match=r"\[A, b\], got \(2,\) and \(2,\)"):
        select.select_hierarchy(torch.zeros(2), torch.ones(2, dtype=torch.bool), 0.9, 0.4)
    with pytest.raises(ValueError, match=r"counts must be integers \[A\] = \[1\], one per row, got \(2,\)"):
        select.select_first(torch.ones(1, 2, dtype=torch.bool), torch.tensor([1, 1]))
