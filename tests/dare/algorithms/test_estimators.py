"""Likelihood estimates: counts, masks over blocks, quadratures, and their means against enumeration."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.algorithms import estimators, segment_masks
from dare_bench.dare.algorithms import levels as noise_levels
from dare_bench.dare.algorithms.base import Context

CONTEXT = Context(run_seed=11)


@pytest.mark.parametrize(("lowest", "draws"), [(1, 12), (0, 13)])
def test_as_many_draws_as_counts_meet_each_once(lowest, draws):
    for first in range(lowest, 13):
        counts = estimators.stratified_counts(torch.tensor([first]), torch.tensor([12]), draws, lowest=lowest)
        assert sorted(counts[0].tolist()) == list(range(lowest, 13))


@pytest.mark.parametrize("lowest", [0, 1])
def test_every_count_is_as_likely_as_the_others(lowest):
    """Over all first counts each draw meets every count equally often, if no sum ends in one half."""
    first = torch.arange(lowest, 10)
    counts = estimators.stratified_counts(first, torch.full_like(first, 9), 3, lowest=lowest)
    for draw in range(3):
        assert sorted(counts[:, draw].tolist()) == first.tolist()


def test_no_tokens_no_masks(make_batch):
    batch = make_batch([3, 4], [5, 4], counted=[0, 4])
    for masked, counts in estimators.stratified_masks(CONTEXT, batch, batch.counted, 3):
        assert counts[0] == 0 and not masked[0].any()
        assert torch.equal(masked.sum(1), counts)
        assert not (masked & ~batch.counted).any()
    assert not estimators.count_weights(torch.tensor([0]), torch.tensor([0])).any()


def test_strata_share_counts(make_batch):
    batch = make_batch([3] * 4, [12] * 4)
    counts = torch.stack(
        [counts for _, counts in estimators.stratified_masks(CONTEXT, batch, batch.counted, 6, strata=2)]
    )
    assert torch.equal(counts[:3], counts[0].expand(3, -1)) and torch.equal(counts[3:], counts[3].expand(3, -1))
    assert (counts[0] != counts[3]).all()
    masks = [masked for masked, _ in estimators.stratified_masks(CONTEXT, batch, batch.counted, 6, strata=2)]
    assert not torch.equal(masks[0], masks[1])


def test_uncounted_tokens_are_hidden_and_not_scored(make_batch):
    for block_length in (0, 4):
        batch = make_batch([3, 5], [8, 6], counted=[5, 6], block_length=block_length)
        masked = batch.counted & (batch.ids % 2 == 0)
        rows = estimators.elbo_rows(batch, masked, torch.ones(2, 1, dtype=torch.float64), 0, batch.counted)
        hidden = rows.ids == batch.mask_token_id
        place = rows.position_ids.clamp(max=batch.ids.shape[1] - 1)
        tail = (batch.response & ~batch.counted).gather(1, place) & rows.real
        assert torch.equal(hidden & rows.real, rows.mask | tail)
        assert tail.sum() == 3


class TestQuadrature:
    @pytest.mark.parametrize("points", range(1, 9))
    def test_gauss_is_exact_for_polynomials(self, points):
        levels, weights = noise_levels.quadrature(points)
        assert float(weights.sum()) == pytest.approx(1.0, abs=1e-13)
        assert ((levels > 0) & (levels < 1)).all() and (levels.diff() > 0).all()
        for degree in range(2 * points):
            assert float((weights * levels**degree).sum()) == pytest.approx(1 / (degree + 1), abs=1e-12)
        beyond = abs(float((weights * levels ** (2 * points)).sum()) - 1 / (2 * points + 1))
        assert beyond > 1e-12 or points > 5

    def test_midpoints(self):
        levels, weights = noise_levels.quadrature(4, "midpoint")
        assert levels.tolist() == pytest.approx([0.125, 0.375, 0.625, 0.875])
        assert weights.tolist() == [0.25] * 4

    @pytest.mark.parametrize(
        ("points", "kind", "said"), [(0, "gauss", "points: 0; allowed"), (2, "simpson", "allowed: gauss")]
    )
    def test_others_are_refused(self, points, kind, said):
        with pytest.raises(ValueError, match=said):
            noise_levels.quadrature(points, kind)

    def test_masks_at_its_levels_estimate_the_elbo(self, make_batch):
        """Two levels are exact for four tokens; several masks at a level are as many draws with a share of its weight."""
        count, tokens = 4000, 4
        batch = make_batch([1] * count, [tokens] * count)
        table = torch.randn(2**tokens, tokens, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 2
        levels, weights = noise_levels.quadrature(2)
        levels, weights = levels.repeat_interleave(3), weights.repeat_interleave(3) / 3
        values = []
        for masked, weight in noise_levels.level_masks(CONTEXT, batch, batch.counted, levels):
            assert not (masked & ~batch.counted).any()
            values.append(weight[:, 0] * looked_up(table, masked[:, 1:]))
        found = estimators.combine(torch.stack(values, 1), weights)
        error = found.std() / count**0.5
        assert abs(float(found.mean() - enumerated(table))) < 4 * float(error)


def looked_up(table, masked):
    """Sum of the table's values over the masked tokens of each row."""
    index = (masked.long() << torch.arange(masked.shape[1])).sum(1)
    return (table[index] * masked).sum(1)


def enumerated(table):
    """Exact ELBO: the mean over counts of n / k times the mean over masks of that count."""
    masks = (torch.arange(len(table))[:, None] >> torch.arange(table.shape[1])) % 2 == 1
    counts, sums = masks.sum(1), (table * masks).sum(1)
    return sum(float(sums[counts == k].mean()) / k for k in range(1, table.shape[1] + 1))


class TestBlocks:
    def test_segments_of_both_origins(self, make_batch):
        batch = make_batch([3, 6], [7, 4], block_length=4)
        assert segment_masks.segments_of(batch)[0, 3:].tolist() == [0, 1, 1, 1, 1, 2, 2]
        assert segment_masks.segments_of(batch)[1, 6:].tolist() == [0, 0, 1, 1]
        assert segment_masks.segments_of(batch, origin="response")[0, 3:].tolist() == [0, 0, 0, 0, 1, 1, 1]
        with pytest.raises(ValueError, match="unknown block origin 'prompt'"):
            segment_masks.segments_of(batch, origin="prompt")

    @pytest.mark.parametrize("origin", ["global", "response"])
    def test_every_block_has_a_masked_token_and_its_weight(self, make_batch, origin):
        batch = make_batch([3, 6, 4, 5], [7, 4, 8, 9], counted=[7, 1, 6, 0], block_length=4)
        segments = segment_masks.segments_of(batch, origin=origin)
        sizes = segment_masks.segment_sizes(batch.counted, segments)
        seen = torch.zeros_like(batch.counted)
        for masked, weight in segment_masks.all_block_masks(CONTEXT, batch, batch.counted, 8, origin=origin):
            counts = segment_masks.segment_sizes(masked, segments)
            assert torch.equal(counts > 0, sizes > 0)
            assert (counts <= sizes).all() and not (masked & ~batch.counted).any()
            torch.testing.assert_close(weight[masked], (sizes / counts).gather(1, segments)[masked].double())
            seen |= masked
        assert torch.equal(seen, batch.counted)

    def test_levels_of_a_block_are_stratified(self, make_batch):
        """As many draws as tokens: each count of a full block occurs once."""
        batch = make_batch([4] * 20, [12] * 20, block_length=4)
        segments = segment_masks.segments_of(batch)
        counts = torch.stack(
            [
                segment_masks.segment_sizes(masked, segments)
                for masked, _ in segment_masks.all_block_masks(CONTEXT, batch, batch.counted, 4)
            ]
        )
        assert torch.equal(counts.sort(dim=0).values, torch.arange(1, 5)[:, None, None].expand_as(counts))

    @pytest.mark.parametrize("kind", ["all blocks", "whole response", "coupled"])
    def test_all_draws_estimate_the_sum_of_block_elbos(self, make_batch, kind):
        """Two blocks of two tokens that see their own block's masks alone: the mean is the enumerated sum."""
        count = 6000
        batch = make_batch([2] * count, [4] * count, block_length=2)
        tables = torch.randn(2, 4, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 2
        exact = sum(enumerated(table) for table in tables)

        def value(masked, weight):
            parts = [looked_up(table, masked[:, 2 + 2 * b : 4 + 2 * b]) for b, table in enumerate(tables)]
            if weight.shape[1] == 1:
                return weight[:, 0] * sum(parts)
            return sum(
                (torch.where(masked, weight, 0)[:, 2 + 2 * b : 4 + 2 * b].amax(1) * part)
                for b, part in enumerate(parts)
            )

        total = batch.counted.sum(1)
        if kind == "all blocks":
            drawn = segment_masks.all_block_masks(CONTEXT, batch, batch.counted, 2)
            found = torch.stack([value(*pair) for pair in drawn]).mean(0)
        elif kind == "whole response":
            drawn = estimators.stratified_masks(CONTEXT, batch, batch.counted, 2)
            found = torch.stack([value(m, estimators.count_weights(k, total)) for m, k in drawn]).mean(0)
        else:
            drawn = list(estimators.stratified_masks(CONTEXT, batch, batch.counted, 2, lowest=0))
            found = torch.stack(
                [
                    value(m, estimators.count_weights(k, total, lowest=0)) / 2
                    + value(batch.counted & ~m, estimators.count_weights(total - k, total, lowest=0)) / 2
                    for m, k in drawn
                ]
            ).mean(0)
        assert abs(float(found.mean()) - exact) < 4 * float(found.std()) / count**0.5


def test_coupled_draws_score_every_token_once(make_batch):
    batch = make_batch([3, 5, 2], [8, 6, 7], counted=[8, 2, 0])
    for masked, counts in estimators.stratified_masks(CONTEXT, batch, batch.counted, 5, lowest=0):
        parts = list(estimators.coupled_rows(batch, masked, counts, 0, batch.counted))
        assert torch.equal(sum(part.mask.long() for part in parts), batch.counted.long())
        (alone,) = estimators.coupled_rows(batch, masked, counts, 0, batch.counted, coupled=False)
        torch.testing.assert_close(alone.weight[masked], 2 * parts[0].weight[masked])
