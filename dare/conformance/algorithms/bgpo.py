"""bgpo: losses, clipped shares and gradients of BGPO, one draw after the other, computed by DARE."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.algorithms.bgpo import BGPO, BGPOConfig, bound_terms
from dare_bench.dare.conformance.algorithms import _elbo
from dare_bench.dare.conformance.fixture import Compared, Fixture
from torch import Tensor

#: Recorded values that are not compared: path in the file -> why.
NOT_COMPARED = {
    "cases.defect_nan_positive_advantage.loss_mean_over_mc": "NaN of the published code, a defect of it",
    "cases.defect_nan_positive_advantage.grad_has_nan": "as the loss; the gradient of 1 + d is compared",
}
_AGGREGATIONS = {"token-mean": "token-mean", "seq-mean-token-mean": "seq-mean"}
_DEFECT = "defect_nan_positive_advantage"


def cases(data: Fixture) -> Iterator[Compared]:
    """Every case. Where the published code takes the logarithm of a negative number, the formula is compared."""
    counted = data.tensor("response_mask").bool()
    advantages = data.tensor("advantages")
    for name, case in data["cases"].items():
        yield from _case(name, case, counted, advantages)


def _case(name: str, case: Any, counted: Tensor, advantages: Tensor) -> Iterator[Compared]:
    options = {"eps_low": case["cliprange"], "aggregation": _AGGREGATIONS[case["agg"]]}
    losses, metrics, gradient = _run(case, counted, advantages, dual_clip=case.get("clip_ratio_c", 3.0), **options)
    if name == _DEFECT:
        share = advantages[0] * counted[0].sum() / counted.sum() / len(losses)
        yield Compared(f"{name}: gradient of 1 + d", -share.expand(len(losses)), gradient[0], 1e-9)
        yield Compared(f"{name}: finite", True, bool(torch.isfinite(gradient).all() & torch.isfinite(losses).all()))
        return
    yield Compared(f"{name} loss", case["loss_mean_over_mc"], losses.mean())
    yield Compared(f"{name} gradient", case["grad_new_l"], gradient)
    if "grad_has_nan" in case:
        yield Compared(f"{name} has NaN", case["grad_has_nan"], not bool(torch.isfinite(gradient).all()))
    shares = counted.sum(1) / counted.sum()
    difference = Fixture.array(case["new_l"]) - Fixture.array(case["old_l"])
    ratios = torch.stack([bound_terms(column, advantages, BGPOConfig())[1] for column in difference.unbind(1)], 1)
    without, _, _ = _run(case, counted, advantages, dual_clip=None, **options)
    for draw, recorded in enumerate(case.get("per_mc", [])):
        yield Compared(f"{name} draw {draw} loss", recorded["pg_loss"], losses[draw])
        yield Compared(f"{name} draw {draw} clipped", recorded["clipfrac"], metrics[draw]["clip_fraction"])
        # Theirs is the mean of the negative logarithm of the ratios, which are no likelihood ratios where A >= 0.
        yield Compared(f"{name} draw {draw} KL", recorded["ppo_kl"], -(shares * ratios[:, draw].log()).sum())
        acts = bool(losses[draw] != without[draw])
        yield Compared(f"{name} draw {draw} dual clip acts", recorded["clipfrac_lower"] > 0, acts)


def _run(
    case: Any, counted: Tensor, advantages: Tensor, **options: Any
) -> tuple[Tensor, list[dict[str, float]], Tensor]:
    """Loss [m] and metrics of every draw, the gradient of their mean [B, m]."""
    new = Fixture.array(case["new_l"]).requires_grad_()
    draws = new.shape[1]
    algorithm = BGPO(BGPOConfig(draws=draws, **options))
    context = _elbo.context_of(_elbo.counted_batch(counted))
    rows, logps = _elbo.rows_of(new)
    before = _elbo.rows_of(Fixture.array(case["old_l"]))[1]
    losses, metrics = [], []
    for draw in range(draws):
        index = (rows.draw == draw).nonzero()[:, 0]
        loss, found = algorithm.loss(logps[index], before[index], None, rows.select(index), advantages, context)
        losses.append(loss * draws)
        metrics.append(found)
    (gradient,) = torch.autograd.grad(torch.stack(losses).mean(), new)
    return torch.stack(losses).detach(), metrics, gradient
