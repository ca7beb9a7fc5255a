"""Supervised losses against executed reference code; masks are injected."""

from __future__ import annotations

import math

import pytest
import torch
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Batch, Context
from dare_bench.dare.algorithms.objectives import token_logps
from dare_bench.dare.algorithms.sft import SFT, SFTConfig

CONTEXT = Context(run_seed=0)


def batch_of(case, counted=None, block_length=0):
    ids = torch.tensor(case["input_ids"])
    prompt_lengths = torch.tensor(case["prompt_lengths"])
    columns = torch.arange(ids.shape[1])
    lengths = torch.full((len(ids),), ids.shape[1])
    return Batch(
        ids=ids,
        prompt_lengths=prompt_lengths,
        lengths=lengths,
        counted=columns >= prompt_lengths[:, None] if counted is None else counted,
        sample_ids=[str(row) for row in range(len(ids))],
        groups=torch.arange(len(ids)),
        mask_token_id=case["mask_id"],
        eos_token_id=case["mask_id"] - 1,
        block_length=block_length,
    )


def loss_of(config, batch, masked, probability, logits):
    """Loss of the project for given masks; logits [B, S, V], or [draws, B, S, V]."""
    algorithm = SFT(config)
    p = torch.as_tensor(probability, dtype=torch.float64)[:, None].expand(masked.shape)
    algorithm._corrupt = lambda batch, context: (masked.clone(), p)
    (rows,) = algorithm.rows(batch, CONTEXT)
    stacked = logits if logits.dim() == 4 else logits[None]
    places = rows.position_ids.clamp(max=logits.shape[-2] - 1)
    own = stacked[rows.draw[:, None], rows.owner[:, None], places]
    new = torch.where(rows.mask, token_logps(own, rows.targets[..., 0]), 0.0)
    loss, metrics = algorithm.loss(new[..., None], None, None, rows, algorithm.advantages(batch), CONTEXT)
    assert metrics["loss"] == pytest.approx(float(loss.detach()))
    return loss, rows


class TestMaskedDiffusion:
    @pytest.mark.parametrize(
        ("norm", "expected", "official"),
        [
            ("sequence", "sequence_mean_guideline", "llada_guideline"),
            ("token", "token_mean_d1", "d1"),
            ("batch", "batch_sum", None),
            ("masked_token", "masked_token_mean_dare", None),
        ],
    )
    def test_every_normalisation(self, oracle, norm, expected, official):
        case = oracle("llada_sft")
        masked = torch.tensor(case["masked"]).bool()
        args = (SFTConfig(loss_norm=norm), batch_of(case), masked, case["p_mask"])
        exact, rows = loss_of(*args, torch.tensor(case["logits"], dtype=torch.float64))
        assert rows.ids.tolist() == case["noisy_input_ids"]
        assert float(exact) == pytest.approx(case["expected_loss"][expected], abs=1e-6)
        single, _ = loss_of(*args, torch.tensor(case["logits"], dtype=torch.float32))
        reference = case["expected_loss"][expected] if official is None else case["official_f32"][official]
        assert float(single) == pytest.approx(reference, abs=2e-5, rel=1e-5)

    def test_gradient(self, oracle):
        case = oracle("llada_sft")
        logits = torch.tensor(case["logits"], requires_grad=True)
        masked = torch.tensor(case["masked"]).bool()
        loss, _ = loss_of(SFTConfig(), batch_of(case), masked, case["p_mask"], logits)
        loss.backward()
        expected = torch.tensor(case["expected_grad_wrt_logits_guideline"])
        torch.testing.assert_close(logits.grad, expected, atol=1e-5, rtol=0)
        assert not logits.grad[~masked].any()  # visible answer tokens and the whole prompt

    def test_default_norm_is_the_guideline(self, oracle):
        case = oracle("llada_sft")
        args = (batch_of(case), torch.tensor(case["masked"]).bool(), case["p_mask"], torch.tensor(case["logits"]))
        assert float(loss_of(SFTConfig(), *args)[0]) == float(loss_of(SFTConfig(loss_norm="sequence"), *args)[0])


class TestBlockDiffusion:
    @pytest.fixture
    def case(self, oracle):
        return oracle("block_diffusion_sft")

    @pytest.fixture
    def batch(self, case):
        return batch_of(case, torch.tensor(case["answer_mask"]).bool(), case["block_size"])

    @staticmethod
    def preset(name, **changes):
        return SFTConfig(**{**registry.get("sft").presets[name], **changes})

    def test_sdar(self, case, batch):
        part = case["sdar"]
        masked = torch.tensor(part["masked"]).bool()
        for config in (self.preset("sdar"), SFTConfig()):
            logits = torch.tensor(part["noisy_half_logits"], dtype=torch.float64, requires_grad=True)
            loss, rows = loss_of(config, batch, masked, part["p_mask_per_row"], logits)
            assert float(loss.detach()) == pytest.approx(part["expected_loss_f64"], abs=1e-6)
            loss.backward()
            expected = torch.tensor(part["expected_grad_wrt_logits"], dtype=torch.float64)
            torch.testing.assert_close(logits.grad, expected, atol=1e-5, rtol=0)
            noisy = torch.tensor(part["noisy_input_ids"]).gather(1, rows.position_ids.clamp(max=11))
            assert torch.equal(rows.ids[rows.real], noisy[rows.real])
            assert torch.equal(rows.context, batch.ids)

    def test_llada2(self, case, batch):
        part = case["sdar"]
        logits = torch.tensor(part["noisy_half_logits"], dtype=torch.float64)
        masked = torch.tensor(part["masked"]).bool()
        loss, _ = loss_of(self.preset("llada2"), batch, masked, part["p_mask_per_row"], logits)
        assert float(loss) == pytest.approx(case["llada2_dfactory"]["expected_loss_f64"], abs=1e-6)

    @pytest.mark.parametrize(
        ("preset", "expected"),
        [("sdar", "expected_loss_time_weighted_f64"), ("llada2", "expected_loss_unweighted_f64")],
    )
    def test_complementary(self, case, batch, preset, expected):
        part = case["complementary"]
        logits = torch.tensor(part["logits"], dtype=torch.float64)
        masked = torch.tensor(part["mask_1"]).bool()
        config = self.preset(preset, complementary=True)
        loss, rows = loss_of(config, batch, masked, part["t"], logits)
        assert float(loss) == pytest.approx(part[expected], abs=1e-6)
        assert rows.draw.tolist() == [0, 0, 1, 1]
        both = torch.zeros(2, batch.ids.shape[1], dtype=torch.long)
        both = both.index_put((rows.owner[:, None].expand_as(rows.mask), rows.position_ids.clamp(max=11)),
                              (rows.mask & rows.real).long(), accumulate=True)  # fmt: skip
        assert torch.equal(both, batch.counted.long())  # every answer token is a target exactly once

    def test_dllm(self, case, batch):
        """Same estimator with the weight 1/(t + 1e-6), t = 1e-3 + 0.999 u."""
        part = case["dllm_bd3lm"]
        t = 1e-3 + 0.999 * torch.tensor(part["t"], dtype=torch.float64) + 1e-6
        logits = torch.tensor(part["noisy_half_logits"], dtype=torch.float64)
        loss, rows = loss_of(SFTConfig(), batch, torch.tensor(part["masked"]).bool(), t, logits)
        assert float(loss) == pytest.approx(part["f64"], abs=1e-6)
        fed = torch.tensor(part["model_input_ids"])
        noisy = fed[:, :12].gather(1, rows.position_ids.clamp(max=11))
        assert torch.equal(rows.ids[rows.real], noisy[rows.real])
        assert torch.equal(rows.context, fed[:, 12:])


class TestRefusedSettings:
    @pytest.mark.parametrize(
        ("field", "value", "allowed"),
        [("loss_norm", "tokens", "sequence, token"), ("weight", "1/t", "inv_t, linear, cart, none"),
         ("noise_scope", "token", "sequence, block"), ("noise_low", 1.5, "0 <= low <= high <= 1")],
    )  # fmt: skip
    def test_message_names_field_and_choices(self, field, value, allowed):
        with pytest.raises(ValueError, match=rf"{field}.*{value}.*allowed") as error:
            SFTConfig(**{field: value})
        assert allowed in str(error.value)

    def test_presets_are_valid(self):
        entry = registry.get("sft")
        for options in entry.presets.values():
            assert isinstance(entry.config_class(**options), SFTConfig)
        assert math.isclose(entry.presets["llada2"]["noise_low"], 0.3)
