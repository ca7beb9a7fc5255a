"""dream_sft.json: token weights, focal factor and end handling of Dream's trainer, on logits that are shifted by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.algorithms.objectives import token_logps
from dare_bench.dare.algorithms.sft_corruption import context_adaptive
from dare_bench.dare.conformance.algorithms import _sft
from dare_bench.dare.conformance.fixture import Compared, Fixture
from dare_bench.dare.diffusion import corruption
from dare_bench.dare.families.base import DiffusionLM
from torch import Tensor

_MODES: dict[str, dict[str, Any]] = {
    "original": {"weight": "inv_t"},
    "linear": {"weight": "linear"},
    "cart_p0.1": {"weight": "cart", "cart_p": 0.1},
    "cart_p0.3": {"weight": "cart", "cart_p": 0.3},
    "cart_p0.8": {"weight": "cart", "cart_p": 0.8},
    "uniform": {"weight": "none"},
    "original_focal_a0.25_g2": {"weight": "inv_t", "focal_alpha": 0.25, "focal_gamma": 2.0},
}


def _aligned(raw: Tensor) -> Tensor:
    """The shift that the family's network gets before its logits are used."""
    return DiffusionLM._at(raw, None, 1)


def cases(data: Fixture) -> Iterator[Compared]:
    """Masks, shift, seven weightings in float64 and float32, the gradient, trailing end tokens as one."""
    counted = data.tensor("loss_mask")
    batch = _sft.batch_of(data, counted)
    masked, t, raw = data.tensor("masked").bool(), data.tensor("t"), data.tensor("raw_logits")
    yield Compared("mask", masked, (data.tensor("uniform_draws") < t[:, None]) & batch.counted)
    noisy = corruption.apply_mask(batch.ids, masked, batch.mask_token_id)
    yield Compared("corrupted ids", data["noisy_input_ids"], noisy)
    ce = -token_logps(_aligned(raw), batch.ids)
    yield Compared("shifted token losses", data.tensor("expected_shifted_token_ce")[:, 1:], ce[:, 1:], 1e-6)
    cart = context_adaptive(masked, batch.real & ~masked, 0.1)
    yield Compared("cart weights", data["expected_cart_weight_p0_1"], cart, 1e-6)

    def loss_of(logits: Tensor, where: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        logits = logits.detach().requires_grad_()
        config = _sft.config_of(**{"loss_norm": "masked_token", "eps": 0.0, **options})
        value, _, gradient = _sft.run(config, batch, where, t, _aligned(logits))
        (raw_gradient,) = torch.autograd.grad(_aligned(logits), logits, gradient)
        return value, raw_gradient

    for mode, values in data["expected_loss"].items():
        yield Compared(f"loss {mode}", values["f64"], loss_of(raw, masked, **_MODES[mode])[0], 1e-6)
        yield Compared(f"loss {mode}, float32", values["official_f32"], loss_of(raw.float(), masked, **_MODES[mode])[0])
    _, gradient = loss_of(raw, masked)
    yield Compared("gradient", data["expected_grad_wrt_raw_logits_original"], gradient, 1e-5)
    yield Compared("gradient at the last raw position", torch.zeros(()), gradient[:, -1].abs().max(), 0.0)
    answers, _ = loss_of(raw, masked, loss_norm="sequence")
    yield Compared("loss by answers", data["sequence_mean_answer_normalised_f64"], answers, 1e-6)

    tied = data["treat_eos_as_one"]
    together = corruption.treat_end_as_one(masked, batch.ids, batch.lengths, data["eos_id"]) & batch.counted
    yield Compared("ends as one: mask", Fixture.array(tied["masked"]).bool(), together)
    shown = corruption.apply_mask(batch.ids, together, batch.mask_token_id)
    yield Compared("ends as one: ids", tied["noisy_input_ids"], shown)
    yield Compared("ends as one: loss", tied["f64"], loss_of(raw, together)[0], 1e-6)
    single = loss_of(raw.float(), together)[0]
    yield Compared("ends as one: loss, float32", tied["expected_loss_original_official_f32"], single)
