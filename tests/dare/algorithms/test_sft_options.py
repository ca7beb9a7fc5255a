"""Weights of Dream, the block-size schedule, cut responses and even noise levels of supervised fine-tuning."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.algorithms import registry, sft_corruption
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.sft import SFT, SFTConfig
from dare_bench.dare.diffusion import corruption, packing
from dare_bench.dare.training import replay
from dare_bench.dare.training.config import TrainConfig
from dare_bench.kernels.masks import doubled_mask
from hypothesis import given, settings
from hypothesis import strategies as st

MASK = 63


def rows_of(batch, config=None, **context):
    (rows,) = SFT(config).rows(batch, Context(**{"run_seed": 0, **context}))
    return rows


def weights(rows):
    """Weights times the number of masked tokens: what a token weighs under the norm `masked_token`."""
    return rows.weight * rows.mask.sum()


class TestCart:
    def test_one_masked_token_in_a_long_row_approaches_one(self):
        for place, expected in ((200, 1.0), (0, 0.5)):  # at the edge, one half of the distribution is outside
            masked = torch.zeros(1, 401, dtype=torch.bool)
            masked[0, place] = True
            weight = sft_corruption.context_adaptive(masked, ~masked, 0.1)
            assert float(weight[0, place]) == pytest.approx(expected, abs=1e-8)
            assert float(weight[0, place]) < 1
            assert float(weight.sum()) == float(weight[0, place])

    @given(bits=st.lists(st.booleans(), min_size=2, max_size=24), p=st.floats(0.01, 0.99))
    @settings(deadline=None, max_examples=100)
    def test_it_lies_in_zero_to_one_and_equals_the_sum(self, bits, p):
        masked = torch.tensor([bits])
        weight = sft_corruption.context_adaptive(masked, ~masked, p)[0]
        for i, hidden in enumerate(bits):
            wanted = sum(0.5 * p * (1 - p) ** (abs(i - j) - 1) for j, other in enumerate(bits) if not other and j != i)
            assert float(weight[i]) == pytest.approx(wanted if hidden else 0.0, abs=1e-12)
            assert 0 <= float(weight[i]) < 1

    def test_it_falls_with_the_distance_of_the_nearest_visible_token(self):
        found = []
        for distance in range(1, 10):
            visible = torch.zeros(1, 20, dtype=torch.bool)
            visible[0, distance] = True
            found.append(float(sft_corruption.context_adaptive(~visible, visible, 0.3)[0, 0]))
        assert found == sorted(found, reverse=True)
        assert len(set(found)) == 9

    def test_nothing_visible_weighs_nothing(self):
        masked = torch.ones(2, 7, dtype=torch.bool)
        assert not sft_corruption.context_adaptive(masked, ~masked, 0.1).any()

    def test_the_prompt_is_context_and_padding_is_not(self, make_batch):
        batch = make_batch([4, 1], [6, 3])
        config = SFTConfig(weight="cart", loss_norm="masked_token", noise_low=1.0)
        rows = rows_of(batch, config)
        assert rows.mask.sum(1).tolist() == [6, 3]
        for row, prompt in ((0, 4), (1, 1)):
            wanted = sum(0.05 * 0.9 ** (prompt - j - 1) for j in range(prompt))
            assert float(weights(rows)[row, prompt]) == pytest.approx(wanted)


class TestTimeWeights:
    def test_each_is_its_formula(self, make_batch):
        batch = make_batch([3] * 50, [9] * 50)
        plain = rows_of(batch, SFTConfig(loss_norm="masked_token"))
        p = torch.where(plain.mask, 1 / weights(plain), 0.0)
        linear = rows_of(batch, SFTConfig(loss_norm="masked_token", weight="linear"))
        uniform = rows_of(batch, SFTConfig(loss_norm="masked_token", weight="none"))
        assert torch.equal(plain.mask, linear.mask)
        torch.testing.assert_close(weights(linear), torch.where(plain.mask, 1 - p, 0.0))
        torch.testing.assert_close(weights(uniform), plain.mask.double())

    def test_the_bound_at_full_noise_is_the_uniform_weight(self, make_batch):
        batch = make_batch([3] * 4, [9] * 4)
        found = [rows_of(batch, SFTConfig(loss_norm="masked_token", weight=name, noise_low=1.0)).weight
                 for name in ("inv_t", "none")]  # fmt: skip
        torch.testing.assert_close(found[0], found[1])

    def test_no_floor_reproduces_the_reference(self, make_batch):
        batch = make_batch([1] * 4000, [8] * 4000)
        with_floor, without = (rows_of(batch, SFTConfig(eps=eps, loss_norm="batch")) for eps in (1e-3, 0.0))
        assert float(with_floor.weight.max()) * 4000 <= 1000
        assert float(without.weight.max()) * 4000 > float(with_floor.weight.max()) * 4000
        assert torch.isfinite(without.weight).all()

    def test_the_focal_factor(self, make_batch):
        batch = make_batch([3], [9])
        rows = rows_of(batch, SFTConfig(noise_low=0.5))
        new = torch.where(rows.mask, -torch.rand(1, 12, dtype=torch.float64), 0.0)[..., None].requires_grad_()
        focal = SFT(SFTConfig(focal_alpha=0.25, focal_gamma=2.0))
        loss, metrics = focal.loss(new, None, None, rows, focal.advantages(batch), Context(0))
        ce = -new.detach()[..., 0]
        assert float(loss.detach()) == pytest.approx(float((rows.weight * 0.25 * (1 - (-ce).exp()) ** 2 * ce).sum()))
        assert metrics["loss"] == float(loss.detach())
        loss.backward()
        assert torch.isfinite(new.grad).all()
        assert not new.grad[~rows.mask].any()

    def test_the_preset_of_dream(self):
        options = SFTConfig(**registry.get("sft").presets["dream"])
        assert (options.weight, options.cart_p, options.loss_norm, options.eps) == ("cart", 0.1, "masked_token", 1e-3)


class TestShift:
    def test_raw_logits_of_the_place_before_score_a_token(self, tiny, make_batch):
        """A change of the state before token i changes only the loss of token i; the last state is never used."""
        lm = tiny("dream")
        states = torch.randn(1, 9, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        states.requires_grad_()
        moved = lm._at(states, None, lm.family.shift)
        for token in range(1, 9):
            (grad,) = torch.autograd.grad(moved[0, token].sum(), states, retain_graph=True)
            assert grad[0].any(1).nonzero().flatten().tolist() == [token - 1]
        (grad,) = torch.autograd.grad(moved.sum(), states)
        assert not grad[0, -1].any()


class TestSchedule:
    SCHEDULE = ((2, 1), (4, 2), (6, 8))

    def test_each_step_has_its_block_length(self, make_batch):
        batch = make_batch([4, 3], [12, 9], block_length=4)
        config = SFTConfig(block_schedule=self.SCHEDULE, noise_scope="block", loss_norm="batch")
        for step, size in ((0, 1), (1, 1), (2, 2), (3, 2), (4, 8), (5, 8), (6, 4), (99, 4)):
            rows = rows_of(batch, config, step=step)
            wanted = make_batch([4, 3], [12, 9], block_length=size)
            plain = rows_of(wanted, SFTConfig(noise_scope="block", loss_norm="batch"), step=step)
            assert rows.block_length == size
            for name in ("ids", "mask", "weight", "targets", "context", "position_ids"):
                assert torch.equal(getattr(rows, name), getattr(plain, name)), (step, name)
        assert batch.block_length == 4  # the batch itself stays as it was

    def test_a_level_per_sequence_draws_the_same_masks_at_every_block_length(self, make_batch):
        batch = make_batch([4], [12], block_length=4)
        config = SFTConfig(block_schedule=((1, 8),))
        wide, own = rows_of(batch, config), rows_of(batch)
        masked = [{int(place) for place in rows.position_ids[rows.mask]} for rows in (wide, own)]
        assert masked[0] == masked[1]

    def test_the_network_scores_such_rows(self, tiny, make_batch):
        lm = tiny("sdar")
        batch = make_batch([4, 4], [12, 8], block_length=4)
        values = set()
        for step in (0, 2, 4, 6):
            rows = rows_of(batch, SFTConfig(block_schedule=self.SCHEDULE, noise_low=0.9), step=step)
            new = replay.score(lm, rows)
            assert torch.isfinite(new).all()
            values.add(round(float(new.detach().sum()), 6))
        assert len(values) == 4

    @pytest.mark.parametrize(
        ("schedule", "said"),
        [
            (((5, 4), (5, 8)), "rising steps, but 5 follows 5"),
            (((5, 4), (9, 6)), "divides the next or is divided by it, not 4, 6"),
            (((5, 0),), "pairs"),
            (((5,),), "pairs"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, schedule, said):
        with pytest.raises(ValueError, match=f"block_schedule: .*allowed: .*{said}"):
            SFTConfig(block_schedule=schedule)

    def test_block_lengths_must_divide_the_longest_sequence(self):
        entry = registry.get("sft")
        options = SFTConfig(block_schedule=[[5, 3]])
        wrong = entry.check(TrainConfig(max_length=64), options)
        assert wrong == {"block_schedule": "block lengths that divide max_length 64; 3 does not"}
        assert not entry.check(TrainConfig(max_length=63), options)
        assert not entry.check(TrainConfig(max_length=63), SFTConfig())

    def test_full_attention_has_no_blocks(self, make_batch):
        with pytest.raises(ValueError, match="block_schedule: this model has full attention"):
            rows_of(make_batch([2], [4]), SFTConfig(block_schedule=((1, 4),)))


class TestComplementary:
    @pytest.mark.parametrize("block_length", [0, 4])
    @pytest.mark.parametrize("norm", ["sequence", "token", "batch", "masked_token"])
    def test_every_answer_token_is_a_target_once(self, make_batch, block_length, norm):
        batch = make_batch([3, 6, 2], [9, 4, 7], block_length=block_length)
        rows = rows_of(batch, SFTConfig(complementary=True, loss_norm=norm))
        times = torch.zeros(batch.ids.shape, dtype=torch.int64)
        places = rows.position_ids.clamp(max=batch.ids.shape[1] - 1)
        owner = rows.owner[:, None].expand_as(places)
        times.index_put_((owner, places), rows.mask.long(), accumulate=True)
        assert torch.equal(times, batch.counted.long())
        assert rows.draw.tolist() == [0, 0, 0, 1, 1, 1]

    def test_the_pair_estimates_what_one_copy_does(self, make_batch):
        """The mean of the bound over draws is the mean cross-entropy, with less variance."""
        draws = 4000
        batch = make_batch([2] * draws, [6] * draws)
        ce = torch.rand(8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        found = {}
        for pair in (False, True):
            rows = rows_of(batch, SFTConfig(complementary=pair, noise_low=0.3, noise_high=0.7, eps=0.0))
            each = torch.zeros(draws, dtype=torch.float64).index_add_(0, rows.owner, (rows.weight * ce).sum(1)) * draws
            found[pair] = float(each.mean()), float(each.std())
            assert abs(found[pair][0] - float(ce[2:].mean())) < 3 * found[pair][1] / draws**0.5
        assert found[True][1] < found[False][1]


class TestCutResponses:
    def test_a_share_of_them_is_cut_at_a_random_length(self, make_batch):
        batch = make_batch([3] * 1000, [10] * 1000)
        rows = rows_of(batch, SFTConfig(response_cut=0.4, noise_low=1.0))
        kept = rows.real.sum(1) - 3
        assert 0.3 < float((kept < 10).double().mean()) < 0.4  # one in ten cuts keeps all
        assert set(kept.tolist()) == set(range(1, 11))
        assert torch.equal(rows.mask.sum(1), kept)
        torch.testing.assert_close(rows.weight.sum(1), torch.full((1000,), 1e-3, dtype=torch.float64))
        again = rows_of(batch, SFTConfig(response_cut=0.4, noise_low=1.0))
        assert torch.equal(rows.real, again.real)
        assert int(batch.lengths.min()) == 13

    def test_none_by_default(self, make_batch):
        assert rows_of(make_batch([3], [10])).real.all()


class TestEvenNoise:
    def test_levels_are_the_midpoints_of_equal_parts(self, make_batch):
        levels = corruption.even_levels(4, low=0.2, high=0.6, eps=0.0)
        torch.testing.assert_close(levels, torch.tensor([0.25, 0.35, 0.45, 0.55], dtype=torch.float64))
        rows = rows_of(make_batch([2] * 8, [400] * 8), SFTConfig(even_noise=True))
        share = rows.mask.sum(1) / 400
        assert share.tolist() == sorted(share.tolist())
        assert float((share - (torch.arange(8) + 0.5) / 8).abs().max()) < 0.1

    def test_losses_of_equal_context_are_equal(self, make_batch):
        batch = make_batch([2] * 8, [9] * 8)
        first, again = (rows_of(batch, SFTConfig(even_noise=True)) for _ in range(2))
        assert torch.equal(first.weight, again.weight)


class TestPacking:
    @given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), size=st.integers(1, 4), rest=st.integers(0, 3))
    @settings(deadline=None, max_examples=50)
    def test_a_packed_mask_is_that_of_each_document(self, lengths, size, rest):
        width = sum(lengths) + rest
        documents, positions = packing.packed(lengths, width)
        mask = doubled_mask(positions[None], positions[None], size, noisy_documents=documents[None],
                            clean_documents=documents[None])[0, 0]  # fmt: skip
        order = packing.interleaved(documents)
        turned = mask[order][:, order]
        seen = torch.zeros_like(turned)
        begin = 0
        for length in [*lengths, *([rest] if rest else [])]:
            place = torch.arange(length)[None]
            seen[begin : begin + 2 * length, begin : begin + 2 * length] = doubled_mask(place, place, size)[0, 0]
            begin += 2 * length
        assert torch.equal(turned, seen)

    @pytest.mark.parametrize("order", ["concatenated", "interleaved"])
    def test_packed_losses_are_those_of_the_documents(self, tiny, make_batch, order):
        """Two documents in one row: with the same masks, its loss is the mean of theirs weighted by answer tokens."""
        lm, lengths = tiny("sdar"), [8, 12]
        batch = make_batch([3, 5], [5, 7], block_length=4)
        rows = rows_of(batch, SFTConfig(loss_norm="token"))
        logps = replay.score(lm, rows)
        documents, places = packing.packed(lengths, sum(lengths))
        mask = doubled_mask(places[None], places[None], 4, noisy_documents=documents[None],
                            clean_documents=documents[None])  # fmt: skip
        clean = torch.cat([batch.ids[row, :length] for row, length in enumerate(lengths)])
        noisy, weight = clean.clone(), torch.zeros(len(clean), dtype=torch.float64)
        for row, start in ((0, 0), (1, 8)):
            own = rows.position_ids[row][rows.real[row]] + start
            noisy[own], weight[own] = rows.ids[row][rows.real[row]], rows.weight[row][rows.real[row]]
        fed, place = torch.cat([noisy, clean]), torch.cat([places, places])
        turn = packing.interleaved(documents) if order == "interleaved" else torch.arange(len(fed))
        back = turn.argsort()[: len(clean)]
        states = lm.hidden(fed[turn][None], mask=mask[:, :, turn][..., turn], position_ids=place[turn][None])[0, back]
        packed_loss = -(weight * lm.head(states).log_softmax(-1).gather(-1, clean[:, None])[:, 0]).sum()
        apart = -(rows.weight * logps[..., 0]).sum()
        torch.testing.assert_close(packed_loss, apart)

    def test_documents_that_do_not_fit(self):
        with pytest.raises(ValueError, match="documents of 7 tokens do not fit into a row of 6"):
            packing.packed([3, 4], 6)

    @pytest.mark.parametrize(("blocks", "size"), [(3, 4), (5, 1), (1, 6)])
    def test_number_of_pairs(self, blocks, size):
        place = torch.arange(blocks * size)[None]
        assert int(doubled_mask(place, place, size).sum()) == size**2 * blocks * (blocks + 1)
