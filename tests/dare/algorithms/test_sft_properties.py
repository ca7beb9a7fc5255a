"""Laws of corruption and weighting, by Monte-Carlo and by construction."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.sft import SFT, SFTConfig
from dare_bench.dare.training.replay import score
from hypothesis import given, settings
from hypothesis import strategies as st

MASK, EOS = 63, 62


def rows_of(batch, config=None, step=0, seed=0):
    (rows,) = SFT(config).rows(batch, Context(run_seed=seed, step=step))
    return rows


class TestMaskLaw:
    def test_no_prompt_token_is_ever_masked(self, make_batch):
        """10**4 rows."""
        batch = make_batch([3, 5, 1, 7] * 2500, [6, 4, 8, 2] * 2500)
        rows = rows_of(batch)
        assert rows.mask.any(1).float().mean() > 0.5
        assert not (rows.mask & ~batch.response).any()
        assert torch.equal(rows.ids == MASK, rows.mask)
        assert torch.equal(rows.ids[~rows.mask], batch.ids[~rows.mask])

    def test_masked_share_follows_the_range(self, make_batch):
        batch = make_batch([2] * 4000, [8] * 4000)
        share = rows_of(batch, SFTConfig(noise_low=0.3, noise_high=0.8, eps=0.0)).mask.sum(1) / 8
        # Mean of U(0.3, 0.8) is 0.55; 32 000 coins with a row effect: standard error below 0.004.
        assert float(share.mean()) == pytest.approx(0.55, abs=0.012)

    @pytest.mark.parametrize("norm", ["sequence", "token", "masked_token"])
    def test_expected_loss_is_the_mean_answer_cross_entropy(self, make_batch, norm):
        """Logits that ignore the noise, 20 000 draws: unbiased for `sequence` and `token`, not for `masked_token`."""
        draws = 20_000
        ce = torch.rand(10, dtype=torch.float64) * 3
        one = make_batch([3], [7])
        batch = make_batch([3] * draws, [7] * draws)
        batch.ids = one.ids.expand(draws, -1)
        rows = rows_of(batch, SFTConfig(loss_norm=norm))
        per_draw = (rows.weight * ce).sum(1)
        if norm == "masked_token":  # the batch of one row is what the normaliser sees
            per_draw = per_draw * rows.mask.sum() / rows.mask.sum(1).clamp(min=1)
        else:
            per_draw = per_draw * draws
        error = float(per_draw.std() / draws**0.5)
        difference = abs(float(per_draw.mean()) - float(ce[3:].mean()))
        assert (difference < 3 * error) == (norm != "masked_token")

    def test_free_padding_scales_the_loss(self, make_batch):
        """k end tokens with zero cross-entropy: exactly n / (n + k)."""
        short, long = make_batch([3], [6]), make_batch([3], [10])
        ce = torch.zeros(13, dtype=torch.float64)
        ce[3:9] = torch.rand(6, dtype=torch.float64)
        for step in range(20):
            before = (rows_of(short, step=step).weight * ce[:9]).sum()
            after = (rows_of(long, step=step).weight * ce).sum()
            torch.testing.assert_close(after, before * 6 / 10)

    def test_trailing_ends_share_one_state(self, make_batch):
        batch = make_batch([2] * 200, [8] * 200)
        batch.ids[:, 6:] = EOS
        tied = rows_of(batch, SFTConfig(treat_eos_as_one=True)).mask
        loose = rows_of(batch, SFTConfig()).mask
        assert torch.equal(tied[:, :7], loose[:, :7])
        assert torch.equal(tied[:, 6:], tied[:, 6:7].expand(-1, 4))
        assert 0 < int(tied[:, 6].sum()) < 200
        assert not torch.equal(tied, loose)


class TestDraws:
    @given(order=st.permutations(range(6)), share=st.sampled_from([0.0, 0.7]))
    @settings(deadline=None, max_examples=20)
    @pytest.mark.parametrize("block_length", [0, 4])
    def test_row_order_does_not_matter(self, make_batch, block_length, order, share):
        prompts, responses = [3, 5, 4, 2, 6, 1], [5, 3, 4, 6, 2, 7]
        config = SFTConfig(noise_scope="block", semi_ar_share=share)
        batch = make_batch(prompts, responses, block_length=block_length)
        turned = make_batch([prompts[i] for i in order], [responses[i] for i in order], block_length=block_length)
        turned.ids, turned.sample_ids = batch.ids[list(order)], [batch.sample_ids[i] for i in order]
        plain, permuted = rows_of(batch, config), rows_of(turned, config)
        for name in ("ids", "mask", "weight", "targets"):
            assert torch.equal(getattr(permuted, name), getattr(plain, name)[list(order)]), name

    def test_draws_do_not_depend_on_batch_mates(self, make_batch):
        """A row alone is corrupted as it is in a batch: the draw belongs to its sample id."""
        batch = make_batch([3, 5], [6, 6])
        alone = make_batch([3], [6])
        assert torch.equal(alone.ids[0], batch.ids[0, :9])
        assert torch.equal(rows_of(batch).mask[0, :9], rows_of(alone).mask[0])

    def test_steps_seeds_and_repeats_differ(self, make_batch):
        batch = make_batch([2] * 8, [40] * 8, sample_ids=["same"] * 8)
        config = SFTConfig(noise_low=0.3, noise_high=0.7)
        masks = rows_of(batch, config).mask
        assert len({tuple(row.tolist()) for row in masks}) == 8
        assert not torch.equal(masks, rows_of(batch, config, step=1).mask)
        assert not torch.equal(masks, rows_of(batch, config, seed=1).mask)
        assert torch.equal(masks, rows_of(batch, config).mask)

    def test_the_global_generator_is_left_alone(self, make_batch):
        state = torch.get_rng_state()
        rows_of(make_batch([2], [4]), SFTConfig(semi_ar_share=0.5))
        assert torch.equal(torch.get_rng_state(), state)


class TestBlocks:
    def test_one_level_per_block(self, make_batch):
        batch = make_batch([4], [40], block_length=4)
        rows = rows_of(batch, SFTConfig(noise_scope="block", loss_norm="batch"))
        levels = rows.weight.view(-1, 4)
        found = {float(w) for block in levels for w in block if w}
        assert all(len({float(w) for w in block if w}) <= 1 for block in levels)
        assert len(found) > 3
        constant = rows_of(batch, SFTConfig(loss_norm="batch")).weight
        assert len({float(w) for w in constant.flatten() if w}) == 1

    def test_stratified_levels_cover_the_range_evenly(self):
        from dare_bench.dare.diffusion.corruption import block_noise_levels

        levels = block_noise_levels([0] * 8, 5, low=0.0, high=1.0, eps=0.0, stratified_seed=3)
        assert sorted((levels.flatten() * 40).long().tolist()) == list(range(40))
        again = block_noise_levels([0] * 8, 5, low=0.0, high=1.0, eps=0.0, stratified_seed=4)
        assert not torch.equal(levels, again)

    def test_b_equal_s_is_the_plain_masked_model(self, tiny, make_batch):
        """with one block the clean half is not seen, and the noisy half is plain full attention."""
        lm = tiny("sdar")
        batch = make_batch([3, 3], [5, 5], block_length=8)
        rows = rows_of(batch)
        plain = lm.logits(rows.ids, mask="full").log_softmax(-1).gather(-1, rows.targets)[..., 0]
        torch.testing.assert_close(score(lm, rows)[..., 0][rows.mask], plain[rows.mask])

    def test_b_equal_one_asks_for_one_token_given_the_clean_prefix(self, tiny, make_batch):
        lm = tiny("sdar")
        batch = make_batch([2], [5], block_length=1)
        rows = rows_of(batch, SFTConfig(noise_low=1.0))
        assert rows.mask[rows.real].all()
        found = score(lm, rows)[0, :, 0]
        for place in range(2, 7):
            query = torch.cat([batch.ids[:, :place], torch.tensor([[MASK]])], 1)
            logits = lm.logits(query, mask="block_causal", block_length=1)[0, -1]
            expected = logits.log_softmax(-1)[batch.ids[0, place]]
            torch.testing.assert_close(found[place - 2], expected)

    def test_no_leak(self, tiny, make_batch):
        """clean tokens of blocks >= k and noisy tokens of other blocks change no logit of block k."""
        lm = tiny("sdar")
        batch = make_batch([4], [12], block_length=4)
        rows = rows_of(batch, SFTConfig(noise_low=0.5))
        before = score(lm, rows)[0, :, 0]
        own = torch.arange(4, 8)  # the second block of the window: positions 8..11
        assert rows.mask[0, own].any()
        changed = rows_of(batch, SFTConfig(noise_low=0.5))
        changed.context = changed.context.clone()
        changed.context[:, 8:] = (changed.context[:, 8:] + 7) % EOS
        changed.ids = changed.ids.clone()
        changed.ids[:, :4], changed.ids[:, 8:] = 5, 6
        after = score(lm, changed)[0, :, 0]
        assert torch.equal(after[own], before[own])
        earlier = rows_of(batch, SFTConfig(noise_low=0.5))
        earlier.context = earlier.context.clone()
        earlier.context[:, 7] = (earlier.context[:, 7] + 7) % EOS
        assert not torch.equal(score(lm, earlier)[0, own, 0], before[own])

    def test_training_scores_equal_those_of_cached_decoding(self, tiny, make_batch):
        """the doubled layout gives the logits of the block decoder, which reads its clean past from a cache."""
        from dare_bench.dare.decoding.caches import PositionCache
        from dare_bench.kernels.masks import block_causal_mask

        lm = tiny("sdar", dtype=torch.float32)
        batch = make_batch([6], [10], block_length=4)
        rows = rows_of(batch, SFTConfig(noise_scope="block", noise_low=0.3))
        trained = score(lm, rows)[0, :, 0]
        cache = PositionCache(1, 16, lm.model.config)
        row = torch.tensor([0])
        noisy = torch.cat([batch.ids[:, :4], rows.ids], 1)
        with torch.inference_mode():
            for start in range(0, 16, 4):
                slots = torch.arange(start, start + 4)[None]
                mask = block_causal_mask(slots, 4, torch.arange(start + 4)[None])
                for ids in (noisy, batch.ids):  # denoise the block, then store it clean
                    cache.aim(row, slots, start + 4)
                    logits = lm.logits(ids[:, start : start + 4], mask=mask, position_ids=slots, cache=cache)
                    if ids is noisy and start >= 4:
                        own = slice(start - 4, start)
                        scores = logits[0].log_softmax(-1).gather(-1, batch.ids[0, start : start + 4, None])[:, 0]
                        scored = rows.mask[0, own]
                        assert (scores - trained[own])[scored].abs().max() < 1e-4 if scored.any() else start
        assert rows.mask.sum() > 3


class TestSemiAutoregressive:
    @pytest.fixture
    def batch(self, make_batch):
        return make_batch([3, 2, 5] * 100, [20, 13, 8] * 100)

    def test_rows_look_like_a_decoder_state(self, batch):
        """Clean blocks, one partly masked block, everything behind it masked."""
        config = SFTConfig(semi_ar_share=1.0, semi_ar_block=4, loss_norm="batch", weight="none")
        rows = rows_of(batch, config)
        active = Counter()
        for row in range(len(batch.ids)):
            begin, end = int(batch.prompt_lengths[row]), int(batch.lengths[row])
            masked = rows.mask[row, begin:end]
            weight = rows.weight[row, begin:end] * len(batch.ids)
            blocks = masked.split(4)
            tail = weight.isclose(torch.tensor(0.2).double()) & masked
            first = int(tail.nonzero()[0]) // 4 if tail.any() else len(blocks)
            assert all(block.all() for block in blocks[first:])
            assert tail[first * 4 :].all()
            assert not any(block.any() for block in blocks[: max(first - 1, 0)])
            assert set(weight[: first * 4].round(decimals=9).tolist()) <= {0.0, 1.0}
            active[first] += 1
        assert len(active) >= 4  # the active block moves

    def test_the_masked_tail_has_probability_one(self, batch):
        """Weights are tail weight x 1 / p: the tail is masked with certainty, whatever the active block's level."""
        config = SFTConfig(semi_ar_share=1.0, semi_ar_block=4, loss_norm="batch")
        rows = rows_of(batch, config)
        weight = rows.weight * len(batch.ids)
        tail = rows.mask & (weight < 1)
        assert tail.any()
        torch.testing.assert_close(weight[tail], torch.full_like(weight[tail], 0.2))

    def test_the_share_of_such_rows(self, batch):
        config = SFTConfig(semi_ar_share=0.5, semi_ar_block=4)
        chosen = (rows_of(batch, config).ids != rows_of(batch).ids).any(1).float().mean()
        assert 0.3 < float(chosen) < 0.6
        untouched = SFTConfig(semi_ar_share=0.0, semi_ar_block=4)
        assert torch.equal(rows_of(batch, untouched).ids, rows_of(batch).ids)

    def test_block_families_ignore_it(self, make_batch):
        batch = make_batch([4] * 8, [8] * 8, block_length=4)
        plain, asked = rows_of(batch), rows_of(batch, SFTConfig(semi_ar_share=1.0))
        assert torch.equal(plain.ids, asked.ids)
        assert torch.equal(plain.weight, asked.weight)

    def test_such_rows_begin_after_their_share_of_the_run(self, batch):
        """With `semi_ar_from`, rows are masked at random until then."""
        config = SFTConfig(semi_ar_share=1.0, semi_ar_block=4, semi_ar_from=0.5)
        plain, always = SFTConfig(), SFTConfig(semi_ar_share=1.0, semi_ar_block=4)
        for step, expected in ((0, plain), (49, plain), (50, always), (99, always)):
            context = Context(0, step, 100)
            found, wanted = (next(iter(SFT(options).rows(batch, context))) for options in (config, expected))
            assert torch.equal(found.ids, wanted.ids)
            assert torch.equal(found.weight, wanted.weight)
