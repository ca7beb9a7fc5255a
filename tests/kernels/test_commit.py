"""Selection by confidence equals the plain loops and never leaves its candidates."""

from __future__ import annotations

import pytest
import torch
from dare_bench.kernels.commit import (
    rank_candidates,
    select_threshold,
    select_threshold_reference,
    select_top,
    select_top_reference,
    write,
)
from hypothesis import given
from hypothesis import strategies as st

# Few distinct values, so that ties are common; all exact in float32.
VALUES = st.sampled_from([0.0, 0.25, 0.5, 0.5, 0.75, 1.0, float("-inf"), float("nan")])


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, length = draw(st.integers(0, 4)), draw(st.integers(1, 7))

    def table(element: st.SearchStrategy) -> list:
        return draw(
            st.lists(st.lists(element, min_size=length, max_size=length), min_size=rows, max_size=rows),
        )

    confidence = torch.tensor(table(VALUES), dtype=torch.float32).view(rows, length)
    candidates = torch.tensor(table(st.booleans()), dtype=torch.bool).view(rows, length)
    counts = torch.tensor(draw(st.lists(st.integers(-1, 9), min_size=rows, max_size=rows)), dtype=torch.int64)
    return confidence, candidates, counts


@given(cases())
def test_top_equals_the_loop_and_is_capped(case):
    confidence, candidates, counts = case
    selected = select_top(confidence, candidates, counts)
    assert torch.equal(selected, select_top_reference(confidence, candidates, counts))
    assert not (selected & ~candidates).any()
    assert torch.equal(selected.sum(1), torch.minimum(counts.clamp(min=0), candidates.sum(1)))


@given(cases(), st.sampled_from([0.25, 0.5, 0.9]), st.booleans())
def test_threshold_equals_the_loop(case, threshold, strict):
    confidence, candidates, counts = case
    selected = select_threshold(confidence, candidates, threshold, strict=strict, at_least=counts)
    assert torch.equal(
        selected, select_threshold_reference(confidence, candidates, threshold, strict=strict, at_least=counts)
    )
    assert not (selected & ~candidates).any()
    above = (confidence > threshold if strict else confidence >= threshold) & candidates
    assert not (above & ~selected).any()
    # the published rule: all above the threshold if they are enough, else the n best
    best = select_top(confidence, candidates, counts)
    enough = above.sum(1) >= best.sum(1)
    assert torch.equal(selected, torch.where(enough[:, None], above, best))


@given(cases())
def test_selecting_again_among_the_selected_changes_nothing(case):
    confidence, candidates, counts = case
    once = select_top(confidence, candidates, counts)
    assert torch.equal(select_top(confidence, once, counts), once)
    above = select_threshold(confidence, candidates, 0.5, strict=False, at_least=counts)
    assert torch.equal(select_threshold(confidence, above, 0.5, strict=False, at_least=counts), above)


@given(cases())
def test_a_row_equals_its_single_run(case):
    confidence, candidates, counts = case
    together = select_top(confidence, candidates, counts)
    dynamic = select_threshold(confidence, candidates, 0.5, strict=True, at_least=counts)
    for row in range(confidence.shape[0]):
        alone = confidence[row : row + 1], candidates[row : row + 1]
        count = counts[row : row + 1]
        assert torch.equal(select_top(*alone, count), together[row : row + 1])
        assert torch.equal(
            select_threshold(*alone, 0.5, strict=True, at_least=count),
            dynamic[row : row + 1],
        )


@given(cases())
def test_values_outside_the_candidates_do_not_matter(case):
    confidence, candidates, counts = case
    disturbed = confidence.masked_fill(~candidates, float("inf"))
    assert torch.equal(select_top(disturbed, candidates, counts), select_top(confidence, candidates, counts))


@given(cases())
def test_ranks_are_a_permutation_with_candidates_first(case):
    confidence, candidates, _ = case
    rank = rank_candidates(confidence, candidates)
    length = confidence.shape[1]
    assert torch.equal(rank.sort(1).values, torch.arange(length).expand_as(rank))
    assert torch.equal(rank < candidates.sum(1, keepdim=True), candidates)


@given(cases())
def test_write_touches_the_selected_only(case):
    confidence, candidates, _ = case
    ids = torch.arange(confidence.numel()).view_as(candidates)
    before = ids.clone()
    tokens = ids + 1000
    out = write(ids, candidates, tokens)
    assert torch.equal(out[candidates], tokens[candidates])
    assert torch.equal(out[~candidates], before[~candidates])
    assert torch.equal(ids, before)
    assert torch.equal(write(out, candidates, tokens), out)


def test_equal_confidences_go_from_left_to_right():
    confidence = torch.full((1, 64), 0.5)
    candidates = torch.ones(1, 64, dtype=torch.bool)
    selected = select_top(confidence, candidates, torch.tensor([10]))
    assert selected[0].nonzero().flatten().tolist() == list(range(10))


def test_more_asked_than_masked_never_overwrites_a_committed_token():
    # the published SDAR script takes k positions although one mask is left
    ids = torch.tensor([[7, 7, 99, 7]])
    is_masked = ids == 99
    selected = select_top(torch.tensor([[0.9, 0.9, 0.1, 0.9]]), is_masked, torch.tensor([3]))
    assert write(ids, selected, torch.full_like(ids, 5)).tolist() == [[7, 7, 5, 7]]


def test_thresholds_may_differ_by_row_and_strictness_matters():
    confidence = torch.tensor([[0.5, 0.75], [0.5, 0.75]])
    candidates = torch.ones(2, 2, dtype=torch.bool)
    limits, none = torch.tensor([0.5, 0.75]), torch.zeros(2, dtype=torch.int64)
    assert select_threshold(confidence, candidates, limits, strict=False, at_least=none).tolist() == [
        [True, True],
        [False, True],
    ]
    assert select_threshold(confidence, candidates, limits, strict=True, at_least=none).tolist() == [
        [False, True],
        [False, False],
    ]


def test_errors_name_what_was_given():
    confidence, candidates = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"\[A, b\], got \(3,\) and \(3,\); a single row is \[1, b\]"):
        select_top(confidence[0], candidates[0], torch.tensor([1]))
    with pytest.raises(ValueError, match=r"candidates bool, got torch.float32 and torch.int64"):
        select_top(confidence, candidates.long(), torch.tensor([1, 1]))
    with pytest.raises(ValueError, match=r"counts must be integers \[A\] = \[2\], one per row, got \(1,\)"):
        select_top(confidence, candidates, torch.tensor([1]))
    with pytest.raises(ValueError, match=r"at_least must be integers .* torch.float32"):
        select_threshold(confidence, candidates, 0.5, strict=True, at_least=torch.zeros(2))
    with pytest.raises(ValueError, match=r"threshold must be one number or a tensor \[A\] = \[2\], got \(3,\)"):
        select_threshold(confidence, candidates, torch.zeros(3), strict=True, at_least=torch.tensor([1, 1]))
    with pytest.raises(ValueError, match=r"selected must be bool"):
        write(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.int64))
