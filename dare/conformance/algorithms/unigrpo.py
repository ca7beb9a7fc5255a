"""unigrpo: objective of the paper's formula on recorded logits, and its schedule of timesteps."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dare_bench.dare.algorithms.base import Batch, Rows
from dare_bench.dare.algorithms.unigrpo import UniGRPO, UniGRPOConfig, schedule
from dare_bench.dare.conformance.algorithms import _graded
from dare_bench.dare.conformance.fixture import Compared, Fixture
from torch import Tensor

#: Recorded in float64 by both.
EXACT = 1e-9


def cases(data: Fixture) -> Iterator[Compared]:
    """Scores, sequence means, loss, timesteps."""
    targets, mask = data.tensor("targets"), data.tensor("mask")
    prompt = 1  # the file holds responses alone: any prompt token will do
    batch = _graded.batch_of(torch.zeros_like(targets[:, :prompt]), targets, torch.ones_like(targets), 99)
    algorithm = UniGRPO(UniGRPOConfig(eps_low=data["eps"], beta=data["beta"]))
    context = _graded.context_of(batch)
    (rows,) = algorithm.rows(batch, context)
    rows.mask = _graded.widened(mask.long(), prompt).bool()
    new = _graded.completion_logps(data.tensor("logits"), targets, prompt)
    yield Compared("scores", data.tensor("logp"), new[:, prompt:, 0], EXACT)
    old, ref = (_graded.widened(data.tensor(name), prompt)[..., None] for name in ("old_logp", "ref_logp"))
    yield Compared("sequence scores", data["sequence_logp_mean_over_masked"], _means(new, rows, batch), EXACT)
    loss, _ = algorithm.loss(new, old, ref, rows, data.tensor("advantages"), context)
    yield Compared("loss", data["loss"], loss, EXACT)
    for name, expected in data["timesteps"].items():
        setting = dict(part.split("=") for part in name.split(","))
        found = schedule(float(setting["r1"]), int(setting["T"]), int(setting["mu"]))
        yield Compared(f"timesteps {name}", expected, found)


def _means(new: Tensor, rows: Rows, batch: Batch) -> Tensor:
    """Sequence scores that the loss averages: at ratio 1 and advantage 1 its gradient holds the weights of the tokens."""
    leaf = new.detach().requires_grad_()
    algorithm, every = UniGRPO(UniGRPOConfig(beta=0.0)), torch.ones(len(new), dtype=new.dtype)
    loss, _ = algorithm.loss(leaf, new.detach(), None, rows, every, _graded.context_of(batch))
    (gradient,) = torch.autograd.grad(loss, leaf)
    return -len(new) * (gradient * new).sum((1, 2))
