"""tracerl_full: loss of TraceRL under full attention, computed by the published trainer of LLaDA."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dare_bench.dare.algorithms.trace_rl import TraceRL, TraceRLConfig
from dare_bench.dare.conformance.algorithms import _steps
from dare_bench.dare.conformance.fixture import Compared, Fixture


def cases(data: Fixture) -> Iterator[Compared]:
    """Each recorded row is the one step of a response of its own."""
    labels, targets, logits = data.tensor("labels"), data.tensor("p_mask"), data.tensor("logits")
    before = data.tensor("logp_old")
    vocab = logits.shape[-1]
    prompt = int((labels == -100).sum(1)[0])
    batch = _steps.batch_of(
        labels.clamp(min=0), prompt, torch.where(targets, 0, -1), vocab - 1, counted=targets, groups=torch.arange(3)
    )
    advantages = data.tensor("advantages")
    for name, beta in (("loss_no_kl", 0.0), ("loss", data["beta"])):
        algorithm = TraceRL(TraceRLConfig(beta=beta, eps_low=data["eps"]))
        rows = _steps.rows_of(algorithm, batch)
        leaf = logits.clone().requires_grad_()
        new = _steps.logps(rows, lambda row, place, rows=rows, leaf=leaf: leaf[rows.owner[row], place])
        old = torch.where(rows.mask, before[rows.owner], 0.0)[..., None]
        loss, _ = algorithm.loss(new, old, None, rows, advantages, _steps.CONTEXT)
        yield Compared(name, data[name], loss, 2e-6)
    yield Compared("log-probabilities", torch.where(targets, data.tensor("logp_new"), 0.0), new[..., 0])
    yield Compared("targets", targets, rows.mask)
    (gradient,) = torch.autograd.grad(loss, leaf)
    yield Compared("gradient", data.tensor("grad_logits"), gradient, 2e-6)
