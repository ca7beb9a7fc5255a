"""ebpo: all-block masks, composite estimates and clipped losses of EBPO, computed by DARE."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.algorithms import estimators, segment_masks
from dare_bench.dare.algorithms.base import Batch
from dare_bench.dare.algorithms.ebpo import EBPO, EBPOConfig
from dare_bench.dare.algorithms.sequence import sequence_kl
from dare_bench.dare.conformance.algorithms import _elbo
from dare_bench.dare.conformance.fixture import Compared, Fixture
from torch import Tensor

#: Recorded values that are not compared: path in the file -> why.
NOT_COMPARED = {"kl.abs": "not offered: its gradient is that of no divergence"}


def cases(data: Fixture) -> Iterator[Compared]:
    """Positions are drawn by a generator of theirs: what follows from the recorded masks is compared."""
    batch = _compact(data, data.tensor("batch"))
    for origin in ("global", "response"):
        yield from _masks(data, batch, origin)
    yield from _composites(data)
    for name, case in data["loss_cases"].items():
        yield from _loss(name, case)
    value, ref = (Fixture.array(data["kl"][key]) for key in ("elbo", "ref"))
    for kind in ("k1", "k2", "k3"):
        yield Compared(f"{kind} value", data["kl"][kind], sequence_kl(value, ref, kind))


def _compact(data: Fixture, values: Tensor) -> Batch:
    """The recorded responses without the padding at their left."""
    real = data.tensor("attention_mask").bool()
    return _elbo.batch_of(
        _moved(values, real),
        real[:, : data["prompt_len"]].sum(1),
        data["mask_id"],
        lengths=real.sum(1),
        block_length=data["block_length"],
    )


def _moved(values: Tensor, real: Tensor) -> Tensor:
    """Real values of each row first."""
    order = (~real).long().argsort(dim=1, stable=True)
    return values.gather(1, order) * real.gather(1, order).to(values.dtype)


def _masks(data: Fixture, batch: Batch, origin: str) -> Iterator[Compared]:
    real = data.tensor("attention_mask").bool()
    noisy, masked = (_moved(data.tensor(f"{origin}.{name}"), real) for name in ("noisy", "mask"))
    masked = masked.bool()
    segments = segment_masks.segments_of(batch, origin=origin)
    sizes = segment_masks.segment_sizes(batch.counted, segments)
    counts = segment_masks.segment_sizes(masked, segments)
    yield Compared(f"{origin}: a mask in every block", sizes > 0, counts > 0)
    share = (counts / sizes.clamp(min=1)).gather(1, segments)
    recorded = _moved(data.tensor(f"{origin}.p_mask"), real)
    yield Compared(f"{origin}: masked share", recorded, torch.where(masked, share, 0.0), 1e-6)
    weight = segment_masks.segment_weights(counts, sizes, segments)
    rows = estimators.elbo_rows(batch, masked, weight, 0, batch.counted)
    places = rows.position_ids.clamp(max=noisy.shape[1] - 1)
    yield Compared(f"{origin}: inputs", noisy.gather(1, places)[rows.real], rows.ids[rows.real])
    yield Compared(f"{origin}: clean half", batch.ids, rows.context)
    yield Compared(f"{origin}: weights", 1 / recorded.gather(1, places)[rows.mask], rows.weight[rows.mask], 1e-6)
    again = segment_masks.mask_of_segment_counts([1] * len(sizes), counts, segments, batch.counted)
    yield Compared(f"{origin}: counts of a draw", counts, segment_masks.segment_sizes(again, segments))


def _composites(data: Fixture) -> Iterator[Compared]:
    """Contributions at padding do not count."""
    counted = data.tensor("attention_mask")[:, None, data["prompt_len"] :]
    rows, logps = _elbo.rows_of(data.tensor("contributions") * counted)
    count = int(rows.owner.max()) + 1
    draws = int(rows.draw.max()) + 1
    found = EBPO(EBPOConfig(draws=draws)).estimate(logps, rows, count)
    yield Compared("composite, equal weights", data["composite_uniform"], found)
    by_draw = estimators.sum_by_draw(logps, rows, count, draws)
    weighted = estimators.combine(by_draw, Fixture.array(data["timestep_weights"]))
    yield Compared("composite, weighted", data["composite_weighted"], weighted)


def _loss(name: str, case: Any) -> Iterator[Compared]:
    value = Fixture.array(case["new"]).requires_grad_()
    options = EBPOConfig(draws=1, eps_low=case["clip_low"], eps_high=case["clip_high"])
    context = _elbo.context_of(_elbo.counted_batch(torch.ones(len(value), 1, dtype=torch.bool)))
    rows, new = _elbo.rows_of(value[:, None])
    _, old = _elbo.rows_of(Fixture.array(case["old"])[:, None])
    loss, metrics = EBPO(options).loss(new, old, None, rows, Fixture.array(case["advantages"]), context)
    (gradient,) = torch.autograd.grad(loss, value)
    yield Compared(f"{name} loss", case["loss"], loss)
    yield Compared(f"{name} loss, float64", case["loss_numpy_float64"], loss, 1e-6)
    yield Compared(f"{name} gradient", case["grad_new"], gradient)
    yield Compared(f"{name} clipped", case["clipfrac"], metrics["clip_fraction"])
    yield Compared(f"{name} KL", case["ppo_kl"], metrics["kl_old"])
