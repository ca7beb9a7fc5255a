"""bgpo_bound: the bound of BGPO and the objective it bounds, on random differences."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dare_bench.dare.algorithms.bgpo import BGPO, BGPOConfig
from dare_bench.dare.conformance.algorithms import _elbo
from dare_bench.dare.conformance.fixture import Compared, Fixture


def cases(data: Fixture) -> Iterator[Compared]:
    """The paper's options: no clip, one response."""
    for number, row in enumerate(data["rows"]):
        difference = Fixture.array(row["delta"])[None]
        advantage = torch.tensor([row["A"]], dtype=torch.float64)
        algorithm = BGPO(BGPOConfig(draws=difference.shape[1]))
        context = _elbo.context_of(_elbo.counted_batch(torch.ones(1, 1, dtype=torch.bool)))
        rows, logps = _elbo.rows_of(difference)
        loss, _ = algorithm.loss(logps, torch.zeros_like(logps), None, rows, advantage, context)
        objective = advantage * difference.mean().exp()
        yield Compared(f"{number} bound", row["bgpo_bound"], -loss, 1e-9)
        yield Compared(f"{number} objective", row["elbo_objective"], objective[0], 1e-9)
        yield Compared(f"{number} below", True, bool(-loss <= objective + 1e-12))
        start = torch.zeros_like(difference).requires_grad_()
        rows, logps = _elbo.rows_of(start)
        loss, _ = algorithm.loss(logps, torch.zeros_like(logps), None, rows, advantage, context)
        (gradient,) = torch.autograd.grad(loss, start)
        yield Compared(f"{number} touches", -advantage[0], loss, 1e-12)
        yield Compared(f"{number} slope", torch.full_like(gradient, -float(advantage / start.numel())), gradient, 1e-12)
