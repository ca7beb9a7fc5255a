"""espo: coupled estimates, losses, gradients and divergences of ESPO, computed by the published trainer (DARE agrees)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.algorithms import estimators
from dare_bench.dare.algorithms.base import Batch
from dare_bench.dare.algorithms.espo import ESPO, ESPOConfig
from dare_bench.dare.algorithms.sequence import sequence_kl
from dare_bench.dare.conformance.algorithms import _elbo, _steps
from dare_bench.dare.conformance.fixture import Compared, Fixture
from dare_bench.dare.diffusion.block import concatenate


def cases(data: Fixture) -> Iterator[Compared]:
    """Counts of the micro-batch are stratified over its rows there, over the draws of one response here: same formula."""
    about = data["config"]
    batch = _elbo.batch_of(data.tensor("input_ids"), about["prompt_len"], about["mask_id"])
    total = torch.tensor([about["completion_len"]])
    counts = Fixture.array(data["num_masked"])
    yield Compared("counts", counts, estimators.stratified_counts(counts[:1], total, len(counts), lowest=0)[0])
    yield from _estimates(data, batch)
    for name, case in data["loss_cases"].items():
        yield from _loss(name, case)
    value, ref = (Fixture.array(data["approx_kl"][key]) for key in ("elbo", "ref"))
    for kind in ("k1", "k2", "k3"):
        leaf = value.clone().requires_grad_()
        found = sequence_kl(leaf, ref, kind)
        (gradient,) = torch.autograd.grad(found.sum(), leaf)
        yield Compared(f"{kind} value", data["approx_kl"][kind]["value"], found)
        yield Compared(f"{kind} gradient", data["approx_kl"][kind]["grad"], gradient)


def _estimates(data: Fixture, batch: Batch) -> Iterator[Compared]:
    counts, masked = Fixture.array(data["num_masked"]), data.tensor("perturbed") == batch.mask_token_id
    logits = [data.tensor(name).requires_grad_() for name in ("logits", "logits_complement")]
    width = batch.counted.sum(1) + 1
    yield Compared("masked share", data["p_mask"], counts / width, 1e-6)
    yield Compared("masked share of positions", data.tensor("p_mask"), (counts / width)[:, None].expand(masked.shape))
    for coupled, keys in ((True, ("elbo_coupled", "elbo_dare_coupled")), (False, ("elbo_uncoupled",))):
        parts = list(estimators.coupled_rows(batch, masked, counts, 0, batch.counted, coupled=coupled))
        rows = concatenate(parts)
        both = torch.stack(logits)
        new = _steps.logps(rows, lambda row, place, both=both: both[row // len(masked), row % len(masked), place])
        value = ESPO(ESPOConfig(draws=1, coupled=coupled)).estimate(new, rows, len(masked))
        for key in keys:
            yield Compared(key, data[key], value)
        if coupled:
            yield Compared("inputs", data.tensor("perturbed"), parts[0].ids)
            yield Compared("inputs of the complement", data.tensor("perturbed_complement"), parts[1].ids)
            gradients = torch.autograd.grad(value.sum(), logits)
            for name, found in zip(("", "complement_"), gradients, strict=True):
                yield Compared(f"gradient {name}", data.tensor(f"grad_logits_{name}of_sum_elbo_coupled"), found)


def _loss(name: str, case: Any) -> Iterator[Compared]:
    value = Fixture.array(case["elbo"]).requires_grad_()
    options = ESPOConfig(draws=1, eps_low=case["epsilon"], beta=case["beta"], inner_iterations=case["num_iterations"])
    counted = torch.ones(len(value), case["completion_len"], dtype=torch.bool)
    context = _elbo.context_of(_elbo.counted_batch(counted))
    rows, new = _elbo.rows_of(value[:, None])
    old, ref = (_elbo.rows_of(Fixture.array(case[key])[:, None])[1] for key in ("old_elbo", "ref_elbo"))
    advantages = Fixture.array(case["advantages"])
    before = old if options.inner_iterations > 1 else None
    loss, _ = ESPO(options).loss(new, before, ref, rows, advantages, context)
    (gradient,) = torch.autograd.grad(loss, value)
    yield Compared(f"{name} loss", case["loss"], loss)
    yield Compared(f"{name} gradient", case["grad_elbo"], gradient)
