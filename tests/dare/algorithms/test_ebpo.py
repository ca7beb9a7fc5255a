"""EBPO: clipped ratios far away, blocks that see no later block, norms, options."""

from __future__ import annotations

import math

import pytest
import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Context
from dare_bench.dare.algorithms.ebpo import EBPO, EBPOConfig
from dare_bench.dare.conformance.algorithms import _elbo
from dare_bench.dare.diffusion.block import concatenate
from dare_bench.dare.training.replay import score


def loss_of(options, new, old, advantages, tokens=1):
    value = torch.tensor(new, dtype=torch.float64).requires_grad_()
    rows, logps = _elbo.rows_of(value[:, None])
    _, before = _elbo.rows_of(torch.tensor(old, dtype=torch.float64)[:, None])
    context = _elbo.context_of(_elbo.counted_batch(torch.ones(len(new), tokens, dtype=torch.bool)))
    loss, metrics = EBPO(options).loss(logps, before, None, rows, torch.tensor(advantages).double(), context)
    return loss, metrics, torch.autograd.grad(loss, value)[0]


@pytest.mark.parametrize("log_ratio", [0.0, 0.1, -0.1, 0.6, -0.6, 300.0, -300.0, 710.0, -710.0, 5000.0, -5000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_clipped_ratio_is_the_formula_without_overflow(log_ratio, advantage):
    options = EBPOConfig(draws=1, eps_low=0.2, eps_high=0.28)
    loss, _, gradient = loss_of(options, [log_ratio - 9.0], [-9.0], [advantage])
    assert torch.isfinite(loss) and torch.isfinite(gradient).all()
    if advantage >= 0 or log_ratio < 350:
        ratio = math.exp(min(log_ratio, 700.0))
        clipped = min(max(ratio, 0.8), 1.28)
        assert float(loss.detach()) == pytest.approx(-min(ratio * advantage, clipped * advantage), rel=1e-9)
    else:
        assert float(loss.detach()) > 1e100  # a bound of the ratio beyond anything that is met
    if advantage == 0:
        assert not gradient.any()


def test_tokens_divide_the_log_ratio():
    plain = loss_of(EBPOConfig(draws=1), [-8.0], [-8.1], [1.0], tokens=10)[1]
    divided = loss_of(EBPOConfig(draws=1, ratio_norm="tokens"), [-8.0], [-8.1], [1.0], tokens=10)[1]
    assert plain["ratio_mean"] == pytest.approx(math.exp(0.1))
    assert divided["ratio_mean"] == pytest.approx(math.exp(0.01))


@pytest.fixture
def batch(make_batch):
    return make_batch(
        [3, 6, 4], [9, 7, 8], counted=[9, 3, 8], block_length=4, rewards=[1.0, 0.0, 0.5], groups=[0, 0, 0]
    )


def test_one_row_masks_every_block(batch):
    algorithm = EBPO(EBPOConfig(draws=4))
    parts = list(algorithm.rows(batch, Context(2, batch=batch)))
    assert len(parts) == 4
    for rows in parts:
        assert rows.layout == "noisy_clean" and len(rows) == 3
        for row in range(3):
            begin, length = int(batch.prompt_lengths[row]), int(batch.counted[row].sum())
            blocks = set(range(begin // 4, (begin + length - 1) // 4 + 1))
            assert set((rows.position_ids[row][rows.mask[row]] // 4).tolist()) == blocks
            for block in blocks:
                inside = rows.mask[row] & (rows.position_ids[row] // 4 == block)
                size = min(begin + length, 4 * block + 4) - max(begin, 4 * block)
                assert rows.weight[row][inside].tolist() == pytest.approx(
                    [size / int(inside.sum())] * int(inside.sum())
                )


def test_masks_of_other_blocks_do_not_change_a_score(tiny, batch):
    lm = tiny("sdar").eval()
    (rows,) = EBPO(EBPOConfig(draws=1)).rows(batch, Context(2, batch=batch))
    with torch.no_grad():
        first = score(lm, rows)[..., 0]
        for block in range(5):
            place = rows.position_ids // 4 == block
            hidden = place & rows.real & (rows.position_ids >= batch.prompt_lengths[:, None])
            changed = score(lm, type(rows)(**{**vars(rows), "ids": torch.where(hidden, lm.mask_token_id, rows.ids)}))[
                ..., 0
            ]
            torch.testing.assert_close(changed[~place], first[~place], rtol=0, atol=1e-12)


def test_rows_of_all_draws_make_one_estimate(batch):
    algorithm = EBPO(EBPOConfig(draws=4))
    rows = concatenate(list(algorithm.rows(batch, Context(2, batch=batch))))
    logp = torch.where(rows.mask, -0.5, 0.0)[..., None]
    assert algorithm.estimate(logp, rows, 3).tolist() == pytest.approx([-0.5 * n for n in (9, 3, 8)])


def test_presets_and_families():
    entry = registry.get("ebpo")
    assert entry.families == {"sdar", "sdar_moe", "llada2_moe"}
    for preset in entry.presets.values():
        assert entry.config_class(**preset).draws == 16
    with pytest.raises(ValueError, match="block_grid: 'prompt'; allowed: global, response"):
        EBPOConfig(block_grid="prompt")
    with pytest.raises(ValueError, match="ratio_norm: 'length'; allowed: none, tokens"):
        EBPOConfig(ratio_norm="length")
