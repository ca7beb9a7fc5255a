"""SPG: inequalities that hold, one draw, zero advantages, what enters the loss, the structure of the masks."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from dare_bench.dare.algorithms import block_masks, registry
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.spg import SPG, SPGConfig
from dare_bench.dare.conformance.algorithms._upper_bound import bounds
from dare_bench.dare.diffusion.block import concatenate
from dare_bench.dare.families.registry import UnknownName

MASK = 63
PROMPTS, RESPONSES, COUNTED = [3, 5, 4, 6, 2, 7], [8, 5, 6, 7, 8, 6], [8, 2, 6, 4, 1, 0]
REWARDS = [1.0, 0.0, 0.5, 0.5, 0.0, 1.0]
EXPONENTS = (1.0, 1.5, 2.0, 3.0, 5.0)


@pytest.fixture
def batch(make_batch):
    return make_batch(PROMPTS, RESPONSES, counted=COUNTED, groups=[0, 0, 1, 1, 2, 2], rewards=REWARDS)


def rows_of(batch, config=None, **context):
    return concatenate(list(SPG(config).rows(batch, Context(**({"run_seed": 0} | context)))))


def scores_of(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = -3 * torch.rand(rows.ids.shape, generator=generator, dtype=torch.float64)
    return torch.where(rows.mask, scores, 0.0)[..., None].requires_grad_()


def gradient_of(algorithm, rows, new, batch, advantages=None):
    advantages = algorithm.advantages(batch) if advantages is None else advantages
    loss, metrics = algorithm.loss(new, None, None, rows, advantages, Context(0, batch=batch))
    (gradient,) = torch.autograd.grad(loss, new)
    return float(loss.detach()), gradient, metrics


def table(tokens, seed):
    """Random log-conditionals of every token given every set of revealed ones."""
    draw = torch.rand(1 << tokens, tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {
        f"{shown:0{tokens}b}:{token}": float(draw[shown, token].log())
        for shown in range(1 << tokens)
        for token in range(tokens)
        if not shown >> token & 1
    }


def log_likelihood(conditionals, tokens):
    """Log of the probability over uniform unmasking orders."""
    total = [0.0] * (1 << tokens)
    total[-1] = 1.0
    for shown in reversed(range((1 << tokens) - 1)):
        rest = [token for token in range(tokens) if not shown >> token & 1]
        ways = [math.exp(conditionals[f"{shown:0{tokens}b}:{i}"]) * total[shown | 1 << i] for i in rest]
        total[shown] = sum(ways) / len(rest)
    return math.log(total[0])


class TestBounds:
    @pytest.mark.parametrize("tokens", [2, 3, 4])
    def test_inequalities_that_hold(self, tokens):
        below = 0
        for seed in range(12):
            conditionals = table(tokens, seed)
            exact = log_likelihood(conditionals, tokens)
            found = [bounds(conditionals, tokens, exponent) for exponent in EXPONENTS]
            lower, upper = float(found[0][0]), [float(pair[1]) for pair in found]
            assert lower <= exact + 1e-12
            assert all(lower <= value + 1e-12 for value in upper)
            assert all(one <= two + 1e-12 for one, two in itertools.pairwise(upper))
            assert all(exact <= value + 1e-12 for b, value in zip(EXPONENTS, upper, strict=True) if b >= tokens)
            below += upper[0] < exact
        assert below or tokens < 4  # at exponent 1 without its constant it is no bound of the likelihood

    def test_few_draws_may_put_the_upper_estimate_below_the_lower(self, batch):
        seen = set()
        for seed in range(20):
            rows = rows_of(batch, step=seed)
            lower, upper = SPG().bounds(scores_of(rows, seed), rows, batch.counted.sum(1).double())
            seen |= set((upper < lower)[:4].tolist())
        assert seen == {True, False}

    def test_by_hand(self, make_batch):
        """Two draws of two tokens: {0} at -1, and both at -2 and -3."""
        batch = make_batch([1], [2], rewards=[1.0])
        rows = rows_of(batch, SPGConfig(masking="all", prompt_mask=0.0, exponent=2.0))
        rows.mask = torch.tensor([[False, True, False], [False, True, True]])
        new = torch.tensor([[0.0, -1.0, 0.0], [0.0, -2.0, -3.0]], dtype=torch.float64)[..., None]
        algorithm = SPG(SPGConfig(exponent=2.0))
        lower, upper = algorithm.bounds(new, rows, torch.tensor([2.0], dtype=torch.float64))
        assert float(lower) == pytest.approx((-1.0 + -2.5) / 2)
        first = math.log((math.exp(-2) / 0.5 + math.exp(-4)) / 2)
        second = math.log(math.exp(-6) / 2)
        assert float(upper) == pytest.approx((first + second) / 2 / 2)
        mixed = algorithm.negative(lower, upper)
        assert float(mixed) == pytest.approx(0.5 * float(lower) + 0.5 * float(upper))

    def test_one_draw_has_the_gradient_of_the_lower_bound(self, batch):
        config = SPGConfig(estimation="elbo", draws=1)
        rows = rows_of(batch, config)
        new = scores_of(rows)
        lower, upper = SPG(config).bounds(new, rows, batch.counted.sum(1).double())
        one, two = (torch.autograd.grad(value.sum(), new, retain_graph=True)[0] for value in (lower, upper))
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-14)
        assert one.any()
        two_draws = rows_of(batch)
        new = scores_of(two_draws)
        lower, upper = SPG().bounds(new, two_draws, batch.counted.sum(1).double())
        one, two = (torch.autograd.grad(value.sum(), new, retain_graph=True)[0] for value in (lower, upper))
        assert float((one - two).abs().max()) > 1e-3

    @pytest.mark.parametrize("estimation", ["eubo", "mix"])
    def test_one_draw_is_refused_where_it_would_not_matter(self, estimation):
        with pytest.raises(ValueError, match=r"draws: 1 with estimation .*allowed: 2 or more"):
            SPGConfig(estimation=estimation, draws=1)
        assert SPGConfig(estimation="elbo", draws=1).draws == 1


class TestLoss:
    def test_the_sign_chooses_the_bound(self, batch):
        rows = rows_of(batch)
        new = scores_of(rows)
        lengths = batch.counted.sum(1).double()
        for estimation in ("elbo", "eubo", "mix", "zero"):
            algorithm = SPG(SPGConfig(estimation=estimation))
            advantages = algorithm.advantages(batch)
            lower, upper = algorithm.bounds(new, rows, lengths)
            value = {"elbo": lower, "eubo": upper, "mix": (lower + upper) / 2, "zero": 0 * lower}[estimation]
            expected = -(advantages * torch.where(advantages > 0, lower, value) * lengths).sum() / lengths.sum()
            assert gradient_of(algorithm, rows, new, batch)[0] == pytest.approx(float(expected.detach()))

    def test_positives_alone_leave_bad_responses_untouched(self, batch):
        rows = rows_of(batch)
        _, gradient, _ = gradient_of(SPG(SPGConfig(estimation="zero")), rows, scores_of(rows), batch)
        good = SPG().advantages(batch)[rows.owner] > 0
        assert not gradient[~good].any()
        assert gradient[good & rows.mask.any(1)].any()

    def test_no_advantage_no_gradient(self, batch):
        rows = rows_of(batch)
        loss, gradient, _ = gradient_of(SPG(), rows, scores_of(rows), batch, torch.zeros(6, dtype=torch.float64))
        assert loss == 0.0
        assert not gradient.any()

    def test_uncounted_positions_and_the_prompt_do_not_enter(self, batch):
        rows = rows_of(batch, SPGConfig(prompt_mask=0.5))
        for n in range(len(rows)):
            assert not (rows.mask[n] & ~batch.counted[rows.owner[n]]).any()
        new = scores_of(rows)
        loss, gradient, _ = gradient_of(SPG(), rows, new, batch)
        noisy = (new.detach() + torch.where(rows.mask, 0.0, -7.0)[..., None]).requires_grad_()
        other, changed, _ = gradient_of(SPG(), rows, noisy, batch)
        assert other == loss
        assert torch.equal(gradient, changed)
        assert not gradient[~rows.mask].any()

    def test_a_response_weighs_what_it_counts(self, batch):
        """Gradient of the lower bound: -A n / (draws k sum n) at each masked token."""
        algorithm = SPG(SPGConfig(estimation="elbo"))
        rows = rows_of(batch)
        _, gradient, _ = gradient_of(algorithm, rows, scores_of(rows), batch)
        lengths = batch.counted.sum(1).double()
        share = -(algorithm.advantages(batch) * lengths / lengths.sum())[rows.owner] / 2
        expected = (share / rows.mask.sum(1).clamp(min=1))[:, None] * rows.mask
        torch.testing.assert_close(gradient[..., 0], expected)


class TestMasks:
    def draws(self, make_batch, kind, *, counted=None, draws=4, count=40, **options):
        batch = make_batch([6] * count, [16] * count, counted=[14] * count if counted is None else counted)
        config = SPGConfig(masking=kind, mask_block=4, draws=draws, **options)
        return batch, list(SPG(config).rows(batch, Context(0)))

    @pytest.mark.parametrize("kind", ["block_random", "block_all"])
    def test_everything_behind_the_chosen_block_is_masked(self, make_batch, kind):
        batch, parts = self.draws(make_batch, kind)
        chosen = block_masks.block_order(Context(0).seeds("blocks", batch), batch, batch.counted, 4, 4)
        sizes = set()
        for draw, rows in enumerate(parts):
            for n in range(len(rows)):
                hidden, start = (rows.ids[n] == MASK)[6:], 4 * int(chosen[n, draw])
                assert hidden[start + 4 :].all()
                assert hidden[14:].all()  # positions that do not count, also within the block
                own = hidden[start : min(start + 4, 14)]
                assert 1 <= int(own.sum()) <= len(own)
                sizes.add(int(own.sum()) if len(own) == 4 else 0)
                if kind == "block_all":
                    assert own.all()
        assert sizes == ({0, 1, 2, 3, 4} if kind == "block_random" else {0, 4})

    def test_tokens_ahead_and_prompts_are_masked_with_the_probability(self, make_batch):
        batch, parts = self.draws(make_batch, "block_random", count=400, prompt_mask=0.3)
        chosen = block_masks.block_order(Context(0).seeds("blocks", batch), batch, batch.counted, 4, 4)
        ahead, prompt = [], []
        for draw, rows in enumerate(parts):
            hidden = rows.ids == MASK
            prompt.append(hidden[:, :6].flatten())
            before = torch.arange(16) < 4 * chosen[:, draw, None]
            ahead.append(hidden[:, 6:][before])
        for found in (torch.cat(ahead), torch.cat(prompt)):
            error = math.sqrt(0.3 * 0.7 / len(found))
            assert abs(float(found.double().mean()) - 0.3) < 4 * error
        assert not torch.equal(prompt[0], prompt[1])

    def test_masked_tokens_ahead_and_behind_count(self, make_batch):
        batch, parts = self.draws(make_batch, "block_random", prompt_mask=0.5)
        for rows in parts:
            assert torch.equal(rows.mask, (rows.ids == MASK) & batch.counted)

    def test_draws_of_a_response_choose_different_blocks(self, make_batch):
        batch = make_batch([6] * 100, [16] * 100)
        order = block_masks.block_order(Context(0).seeds("blocks", batch), batch, batch.counted, 4, 4)
        assert all(sorted(row) == [0, 1, 2, 3] for row in order.tolist())
        assert len({tuple(row) for row in order.tolist()}) > 10
        again = block_masks.block_order(Context(0).seeds("blocks", batch), batch, batch.counted, 4, 6)
        assert torch.equal(again[:, :4], order)
        assert torch.equal(again[:, 4:], order[:, :2])

    def test_only_blocks_with_counted_tokens_are_chosen(self, make_batch):
        batch = make_batch([6] * 60, [16] * 60, counted=[5] * 60)
        order = block_masks.block_order(Context(0).seeds("blocks", batch), batch, batch.counted, 4, 2)
        assert set(order.flatten().tolist()) == {0, 1}

    def test_random_masks_any_number_anywhere(self, make_batch):
        _, parts = self.draws(make_batch, "random", count=200, prompt_mask=0.0)
        hidden = torch.cat([rows.ids == MASK for rows in parts])
        assert hidden[:, 20:].all()
        assert not hidden[:, :6].any()
        counts = hidden[:, 6:20].sum(1)
        assert set(counts.tolist()) == set(range(1, 15))
        assert float(counts.double().mean()) == pytest.approx(7.5, abs=0.6)

    def test_shares_bound_the_number(self, make_batch):
        _, parts = self.draws(make_batch, "random", count=100, prompt_mask=0.0, min_t=0.3, max_t=0.5)
        counts = torch.cat([(rows.ids == MASK)[:, 6:20].sum(1) for rows in parts])
        assert set(counts.tolist()) == {4, 5, 6, 7}

    def test_all_masks_the_whole_response(self, make_batch):
        _, parts = self.draws(make_batch, "all")
        assert all((rows.ids == MASK)[:, 6:].all() for rows in parts)

    @pytest.mark.parametrize("kind", ["block_random", "block_all", "random"])
    def test_every_draw_scores_a_token_of_every_response_that_counts(self, batch, kind):
        for step in range(10):
            rows = rows_of(batch, SPGConfig(masking=kind, mask_block=3), step=step)
            assert torch.equal(rows.mask.any(1), batch.counted.any(1)[rows.owner])


@pytest.mark.parametrize(
    "options",
    [{"estimation": "best"}, {"masking": "blocks"}, {"omega": 1.5}, {"exponent": 0.5}, {"min_t": 0.6, "max_t": 0.5}],
)
def test_refused_options(options):
    with pytest.raises(ValueError, match=rf"{next(iter(options))}: .*allowed"):
        SPGConfig(**options)


def test_presets():
    entry = registry.get("spg")
    configs = {name: entry.config_class(**options) for name, options in entry.presets.items()}
    repo = configs["repo"]
    assert (repo.group_size, repo.inner_iterations, repo.draws, repo.estimation) == (6, 4, 2, "mix")
    assert (repo.exponent, repo.omega, repo.masking, repo.mask_block) == (1.5, 0.5, "block_random", 32)
    assert (configs["dare"].estimation, configs["dare"].draws, configs["dare"].advantage) == ("elbo", 1, "std")
    assert entry.families == {"llada", "dream", "llada_moe"}
    assert entry.needs.ref == "none"
    assert not entry.needs.old


def test_block_families_are_refused():
    """They read clean earlier blocks and no later ones: states that the masks imitate do not occur."""
    with pytest.raises(UnknownName, match=r"family of spg 'sdar'.*dream, llada"):
        registry.get("spg", "sdar")
