"""exact_bounds: estimators against the exact values of enumerated models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.algorithms import estimators
from dare_bench.dare.algorithms import levels as noise_levels
from dare_bench.dare.conformance.algorithms import _elbo, _upper_bound
from dare_bench.dare.conformance.fixture import Compared, Fixture
from dare_bench.dare.diffusion.block import concatenate
from torch import Tensor


def cases(data: Fixture) -> Iterator[Compared]:
    """Every case; the recorded estimators are those of the case of four tokens."""
    for number, case in enumerate(data["cases"]):
        name, conditionals = f"{number} ({case['n']} tokens)", Table(case)
        expected = estimates(conditionals)
        for kind, value in expected.items():
            wanted = case["elbo"] / case["n"] if kind == "spg_mean" else case["elbo"]
            yield Compared(f"{name} ELBO, {kind}", wanted, value, 1e-9)
        yield Compared(f"{name} bound", True, case["elbo"] <= case["log_likelihood"] + 1e-12)
        for exponent, value in case["eubo"].items():
            lower, upper = _upper_bound.bounds(conditionals.values, case["n"], float(exponent))
            yield Compared(f"{name} upper bound {exponent}", value, upper, 1e-9)
            yield Compared(f"{name} ELBO, spg {exponent}", case["elbo"], lower, 1e-9)
            if float(exponent) >= case["n"]:
                yield Compared(f"{name} holds {exponent}", True, case["log_likelihood"] <= float(upper) + 1e-12)
        if case["n"] == 4:
            recorded = data["unbiased_elbo_estimators_n4_seed0"]
            for kind in ("bgpo", "espo", "espo_coupled", "spg_mean"):
                yield Compared(f"{name} recorded {kind}", recorded[kind], expected[kind], 1e-9)
            yield Compared(f"{name} recorded ELBO", recorded["elbo"], case["elbo"], 1e-9)


class Table:
    """Conditionals of one response of n tokens: log-probability of a token where some of the others are revealed."""

    def __init__(self, case: Any) -> None:
        self.tokens = case["n"]
        self.batch = _elbo.batch_of(torch.zeros(1, self.tokens, dtype=torch.int64), 0, 1)
        self.values = dict(case["cond_logp"].items())

    def logps(self, masked: Tensor) -> Tensor:
        """Log-probabilities of the masked tokens, [N, n], 0 elsewhere; `masked` bool [N, n]."""
        found = torch.zeros(masked.shape, dtype=torch.float64)
        for row, hidden in enumerate(masked.tolist()):
            revealed = "".join("0" if hidden[token] else "1" for token in reversed(range(self.tokens)))
            for token in range(self.tokens):
                if hidden[token]:
                    found[row, token] = self.values[f"{revealed}:{token}"]
        return found


def subsets(tokens: int) -> Tensor:
    """All masks of a response, bool [2 ** n, n]."""
    numbers = torch.arange(2**tokens)
    return (numbers[:, None] >> torch.arange(tokens)) % 2 == 1


def estimates(table: Table) -> dict[str, Tensor]:
    """Mean of each estimator over all that it may draw, each with its probability."""
    masks, batch = subsets(table.tokens), table.batch
    counts, total = masks.sum(1), torch.full((len(masks),), table.tokens)
    every = torch.ones_like(masks)
    whole = _elbo.batch_of(batch.ids.expand(len(masks), -1), 0, batch.mask_token_id)
    same_count = torch.stack([(counts == count).sum() for count in counts]).double()
    logps = table.logps(masks)

    def sums(weight: Tensor) -> Tensor:
        rows = estimators.elbo_rows(whole, masks, weight, 0, every)
        return estimators.sum_by_draw(logps[..., None], rows, len(masks), 1)[:, 0]

    one = sums(estimators.count_weights(counts, total))
    zero = sums(estimators.count_weights(counts, total, lowest=0))
    pairs = concatenate(list(estimators.coupled_rows(whole, masks, counts, 0, every)))
    both = torch.cat([logps, table.logps(~masks)])[..., None]
    coupled = estimators.sum_by_draw(both, pairs, len(masks), 1)[:, 0]
    from_one = (counts > 0) / (same_count * table.tokens)
    found = {
        "bgpo": (from_one * one).sum(),
        "spg_mean": (from_one * one / table.tokens).sum(),
        "espo": (zero / (same_count * (table.tokens + 1))).sum(),
        "espo_coupled": (coupled / (same_count * (table.tokens + 1))).sum(),
    }
    levels, weights = noise_levels.quadrature((table.tokens + 1) // 2)
    chances = levels[:, None] ** counts * (1 - levels[:, None]) ** (total - counts)
    by_level = (chances * sums(torch.ones(len(masks), 1, dtype=torch.float64))).sum(1) / levels
    found["quadrature"] = estimators.combine(by_level[None], weights)[0]
    return found
