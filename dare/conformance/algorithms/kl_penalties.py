"""kl_penalties: KL estimates of DARE, the plain ones and those that depend on the sign of the advantage."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dare_bench.dare.algorithms.objectives import kl
from dare_bench.dare.conformance.fixture import Compared, Fixture
from torch import Tensor


def cases(data: Fixture) -> Iterator[Compared]:
    """Every estimate under either reading of the log-ratio."""
    policy, reference = data.tensor("l_theta"), data.tensor("ref_l_theta")
    published = _published_log_ratio(policy, reference, data.tensor("advantages"))
    for name, logp in (("plain_kl (core_algos.kl_penalty)", policy), ("kl", reference + published)):
        for kind, expected in data[name].items():
            # The absolute value is no estimate of its own here: it is that of k1.
            found = kl(logp, reference, "k1").abs() if kind == "abs" else kl(logp, reference, kind)
            yield Compared(f"{name} {kind}", expected, found)


def _published_log_ratio(policy: Tensor, reference: Tensor, advantages: Tensor) -> Tensor:
    """Published quirk: log(1 + d) stands for the log-ratio d where the advantage is positive.

    It estimates no KL and is undefined for d <= -1, so that no algorithm here uses it: what it gives is reproduced from
    recorded values alone.
    """
    d = policy - reference
    return torch.where(advantages > 0, d.log1p(), d)
