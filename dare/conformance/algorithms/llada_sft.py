"""llada_sft.json: masked diffusion with every published normalisation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dare_bench.dare.algorithms.objectives import token_logps
from dare_bench.dare.conformance.algorithms import _sft
from dare_bench.dare.conformance.fixture import Compared, Fixture

_NORMS = {
    "sequence_mean_guideline": "sequence",
    "token_mean_d1": "token",
    "batch_sum": "batch",
    "masked_token_mean_dare": "masked_token",
}


def cases(data: Fixture) -> Iterator[Compared]:
    """Masking law, corrupted ids, token losses, four normalisations, their official values, the gradient."""
    batch = _sft.batch_of(data)
    masked, logits, t, eps = (data.tensor("masked").bool(), data.tensor("logits"), data.tensor("t"), data["eps"])
    p = data.tensor("p_mask")
    yield Compared("probability", p, (1 - eps) * t + eps, 1e-6)
    drawn = (data.tensor("uniform_draws") < p[:, None]) & batch.response
    yield Compared("mask", masked, drawn)
    yield Compared("answer lengths", data["answer_lengths"], batch.counted.sum(1))
    for name, norm in _NORMS.items():
        config = _sft.config_of(loss_norm=norm, eps=eps)
        loss, rows, gradient = _sft.run(config, batch, masked, p, logits)
        yield Compared(f"loss {norm}", data["expected_loss"][name], loss, 1e-6)
        if norm == "sequence":
            yield Compared("corrupted ids", data["noisy_input_ids"], rows.ids)
            yield Compared("gradient", data["expected_grad_wrt_logits_guideline"], gradient, 1e-5)
            yield Compared("gradient where visible", torch.zeros(()), gradient[~masked].abs().max(), 0.0)
    ce = data.tensor("expected_token_ce")
    yield Compared("token losses", ce, -token_logps(logits, batch.ids), 1e-6)
    official = data["official_f32"]
    single = logits.float()
    for name, norm in (("llada_guideline", "sequence"), ("d1", "token")):
        loss, _, _ = _sft.run(_sft.config_of(loss_norm=norm, eps=eps), batch, masked, p, single)
        yield Compared(f"official {name}", official[name], loss)
    for norm, value in official["dllm"].items():  # its weight is 1 / (t + 1e-6), t = the probability
        loss, _, _ = _sft.run(_sft.config_of(loss_norm=norm, eps=eps), batch, masked, p + 1e-6, single)
        yield Compared(f"official dllm {norm}", value, loss)
