"""The two-pass backward gives the gradient of the whole batch for any micro-batch size and row order."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.d1 import D1, D1Config
from dare_bench.dare.algorithms.sft import SFT, SFTConfig
from dare_bench.dare.training import replay
from dare_bench.dare.training.data import Encoded, collate

CONTEXT = Context(run_seed=3)
ALGORITHMS = {
    "sft": SFT(),
    "sft, complementary": SFT(SFTConfig(complementary=True, loss_norm="masked_token")),
    "d1": D1(D1Config(beta=0.3, dual_clip=3.0)),
    "d1, sequences": D1(D1Config(aggregation="seq-mean-token-mean")),
}


@pytest.fixture(params=["llada", "sdar", "dream", "llada2_moe", "llada_moe", "sdar_moe"])
def lm(request, tiny):
    return tiny(request.param, text=False, dtype=torch.float64)


@pytest.fixture
def batch(lm):
    generator = torch.Generator().manual_seed(1)

    def draw(count):
        return torch.randint(0, 60, (count,), generator=generator).tolist()

    shapes = [(3, 4), (6, 2), (2, 9), (5, 5), (1, 3), (4, 7)]
    made = collate(lm, [Encoded(f"r{i}", draw(p), draw(r), {}) for i, (p, r) in enumerate(shapes)])
    columns = torch.arange(made.ids.shape[1])
    if lm.is_block_causal:  # rows of rollouts end where they stopped
        made.counted &= columns < (made.prompt_lengths + torch.tensor([4, 2, 6, 5, 1, 7]))[:, None]
    made.groups, made.rewards = torch.arange(6) // 3, torch.rand(6, generator=generator, dtype=torch.float64)
    return made


def scores(lm, algorithm, rows):
    """Old and reference log-probabilities that differ from the policy's, as after some inner steps."""
    if not algorithm.needs.old:
        return None, None
    plain = replay.score_all(lm, rows, None)
    generator = torch.Generator().manual_seed(7)
    noise = torch.randn(2, *plain.shape, generator=generator, dtype=torch.float64) * 0.3 * rows.mask[..., None]
    return plain + noise[0], plain + noise[1]


def gradient(lm):
    found = {name: p.grad.clone() for name, p in lm.model.named_parameters() if p.grad is not None}
    lm.model.zero_grad()
    return found


def assert_equal(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        scale = float(value.abs().max())
        assert float((found[name] - value).abs().max()) <= 1e-5 * scale + 1e-15, name


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("micro_rows", [1, 2, 3, None])
def test_equals_the_direct_gradient(lm, batch, name, micro_rows):
    algorithm = ALGORITHMS[name]
    (rows,) = algorithm.rows(batch, CONTEXT)
    advantages = algorithm.advantages(batch)
    old, ref = scores(lm, algorithm, rows)
    loss, metrics = algorithm.loss(replay.score(lm, rows), old, ref, rows, advantages, CONTEXT)
    loss.backward()
    expected = gradient(lm)
    assert max(float(value.abs().max()) for value in expected.values()) > 1e-3
    found = replay.backward(lm, algorithm, rows, advantages, CONTEXT, old=old, ref=ref, micro_rows=micro_rows)
    assert_equal(gradient(lm), expected)
    assert set(found) == set(metrics)
    for key, value in metrics.items():
        assert found[key] == pytest.approx(value, rel=1e-9, abs=1e-12), key


@pytest.mark.parametrize("name", ALGORITHMS)
def test_row_order_does_not_matter(lm, batch, name):
    algorithm = ALGORITHMS[name]
    (rows,) = algorithm.rows(batch, CONTEXT)
    advantages = algorithm.advantages(batch)
    old, ref = scores(lm, algorithm, rows)
    replay.backward(lm, algorithm, rows, advantages, CONTEXT, old=old, ref=ref, micro_rows=2)
    expected = gradient(lm)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    turned = rows.select(order)
    assert turned.ids.shape == rows.ids.shape  # all rows are there: nothing to cut
    pick = (None, None) if old is None else (old[order], ref[order])
    replay.backward(lm, algorithm, turned, advantages, CONTEXT, old=pick[0], ref=pick[1], micro_rows=2)
    assert_equal(gradient(lm), expected)


def test_old_defaults_to_the_policy_itself(lm, batch):
    """Without old scores the ratio is 1 and the gradient that of plain policy gradient, in both passes."""
    algorithm = D1()
    (rows,) = algorithm.rows(batch, CONTEXT)
    advantages = algorithm.advantages(batch)
    once = replay.backward(lm, algorithm, rows, advantages, CONTEXT)
    expected = gradient(lm)
    twice = replay.backward(lm, algorithm, rows, advantages, CONTEXT, micro_rows=2)
    assert_equal(gradient(lm), expected)
    assert once["ratio_mean"] == twice["ratio_mean"] == 1.0


def test_scores_do_not_depend_on_micro_batches(lm, batch):
    (rows,) = SFT(SFTConfig(noise_low=0.5)).rows(batch, CONTEXT)
    direct = replay.score(lm, rows).detach()
    assert not direct[~rows.mask].any()
    assert (direct[rows.mask] < 0).all()
    for micro_rows in (1, 2, 4, None):
        torch.testing.assert_close(replay.score_all(lm, rows, micro_rows), direct)


def test_chunks_partition_and_group_like_lengths(lm, batch):
    (rows,) = SFT().rows(batch, CONTEXT)
    parts = list(replay.chunks(rows, 2))
    assert sorted(int(i) for part in parts for i in part) == list(range(6))
    width = rows.real.sum(1) + (0 if rows.context_real is None else rows.context_real.sum(1))
    flat = [int(width[i]) for part in parts for i in part]
    assert flat == sorted(flat)
    assert [len(part) for part in replay.chunks(rows, 0)] == [6]


def test_a_batch_without_any_mask_gives_zero(lm, batch):
    algorithm = SFT()
    algorithm._corrupt = lambda batch, context: (
        torch.zeros_like(batch.counted),
        torch.full(batch.ids.shape, 0.5).double(),
    )
    (rows,) = algorithm.rows(batch, CONTEXT)
    for micro_rows in (None, 2):
        metrics = replay.backward(lm, algorithm, rows, algorithm.advantages(batch), CONTEXT, micro_rows=micro_rows)
        assert metrics == {"loss": 0.0, "nll_masked": 0.0}
        assert all(not value.any() for value in gradient(lm).values())


def test_select_cuts_padding(lm, batch):
    (rows,) = SFT().rows(batch, CONTEXT)
    if lm.is_block_causal:
        short = rows.select(torch.tensor([4]))
        assert short.ids.shape == (1, 4)
        assert short.context.shape == (1, 4)
        assert short.tokens_fed == 8
    else:
        assert rows.tokens_fed == rows.ids.numel()  # the fill is attended
