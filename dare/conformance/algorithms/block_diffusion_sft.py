"""block_diffusion_sft.json: SDAR, LLaDA2.x and BD3-LM losses on the noisy half of the doubled layout."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dare_bench.dare.algorithms.base import Batch, Rows
from dare_bench.dare.conformance.algorithms import _sft
from dare_bench.dare.conformance.fixture import Compared, Fixture
from dare_bench.dare.diffusion import corruption
from torch import Tensor


def _fed(rows: Rows, recorded: Tensor) -> tuple[Tensor, Tensor]:
    """Noisy tokens of the rows and what was recorded at their places."""
    places = rows.position_ids.clamp(max=recorded.shape[1] - 1)
    return rows.ids[rows.real], recorded[rows.owner].gather(1, places)[rows.real]


def _targets(rows: Rows, batch: Batch) -> Tensor:
    """How often each token of the batch is a target, int64 [B, S]."""
    times = torch.zeros(batch.ids.shape, dtype=torch.int64)
    places = rows.position_ids.clamp(max=times.shape[1] - 1)
    owner = rows.owner[:, None].expand_as(places)
    return times.index_put((owner, places), rows.mask.long(), accumulate=True)


def cases(data: Fixture) -> Iterator[Compared]:
    """Four recipes."""
    batch = _sft.batch_of(data, data.tensor("answer_mask"), data["block_size"])
    case = data["sdar"]
    masked, p = Fixture.array(case["masked"]), Fixture.array(case["p_mask_per_row"])
    logits = Fixture.array(case["noisy_half_logits"])
    loss, rows, gradient = _sft.run(_sft.config_of("sdar"), batch, masked, p, logits)
    yield Compared("sdar loss", case["expected_loss_f64"], loss, 1e-6)
    single, _, _ = _sft.run(_sft.config_of("sdar"), batch, masked, p, logits.float())
    yield Compared("sdar loss, float32", case["expected_loss_official_reduction_f32"], single)
    yield Compared("sdar gradient", case["expected_grad_wrt_logits"], gradient, 1e-5)
    found, wanted = _fed(rows, Fixture.array(case["noisy_input_ids"]))
    yield Compared("sdar noisy half", wanted, found)
    yield Compared("sdar clean half", data["input_ids"], rows.context)

    loss, _, _ = _sft.run(_sft.config_of("llada2"), batch, masked, p, logits)
    yield Compared("llada2 loss", data["llada2_dfactory"]["expected_loss_f64"], loss, 1e-6)

    case = data["complementary"]
    first, t, logits = (Fixture.array(case[name]) for name in ("mask_1", "t", "logits"))
    low, high = case["bandwidth"]
    yield Compared("complementary levels", torch.ones(()), ((t >= low) & (t <= high)).all().double(), 0.0)
    drawn = (Fixture.array(case["uniform_draws"]) < t[:, None]) & batch.counted
    yield Compared("complementary mask", first.bool(), drawn)
    yield Compared("complement", Fixture.array(case["mask_2"]).bool(), corruption.complement(drawn, batch.counted))
    for preset, name in (("sdar", "time_weighted"), ("llada2", "unweighted")):
        loss, rows, _ = _sft.run(_sft.config_of(preset, complementary=True), batch, first, t, logits)
        yield Compared(f"complementary loss, {preset}", case[f"expected_loss_{name}_f64"], loss, 1e-6)
        yield Compared(f"every token once, {preset}", batch.counted.long(), _targets(rows, batch))

    case = data["dllm_bd3lm"]
    u, masked, logits = (Fixture.array(case[name]) for name in ("t", "masked", "noisy_half_logits"))
    t = 1e-3 + 0.999 * u
    drawn = (Fixture.array(case["uniform_draws"]) < t[:, None]) & batch.counted
    yield Compared("dllm mask", masked.bool(), drawn)
    for kind, value in ((torch.float64, case["f64"]), (torch.float32, case["official_f32"])):
        loss, rows, _ = _sft.run(_sft.config_of(), batch, masked, t + 1e-6, logits.to(kind))
        yield Compared(f"dllm loss, {str(kind)[6:]}", value, loss, 1e-6 if kind == torch.float64 else 2e-5)
    width = batch.ids.shape[1]
    fed, places = Fixture.array(case["model_input_ids"]), Fixture.array(case["position_ids"])
    found, wanted = _fed(rows, fed[:, :width])
    yield Compared("dllm noisy half", wanted, found)
    yield Compared("dllm clean half", fed[:, width:], rows.context)
    found, wanted = rows.position_ids[rows.real], _fed(rows, places[:, :width])[1]
    yield Compared("dllm positions", wanted, found)
    yield Compared("dllm clean positions", places[:, width:], torch.arange(width).expand(len(fed), -1))
