"""The upper bound of SPG on enumerated models: every mask of a short response, as often as its chance demands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

import torch
from dare_bench.dare.algorithms.base import Rows
from dare_bench.dare.algorithms.spg import SPG, SPGConfig
from torch import Tensor


def bounds(conditionals: Mapping[str, float], tokens: int, exponent: float) -> tuple[Tensor, Tensor]:
    """Lower and upper bound of a whole response by SPG's estimates, exact because no mask is drawn.

    Args:
        conditionals: ``"<revealed tokens as bits, the last token first>:<i>"`` -> log-probability of token i.
        tokens: n.
        exponent: b of the upper bound.

    Returns:
        Two float64 scalars.
    """
    rows, logp = _every_mask(conditionals, tokens)
    algorithm = SPG(SPGConfig(estimation="elbo", draws=len(rows), exponent=exponent))
    lower, upper = algorithm.bounds(logp, rows, torch.tensor([float(tokens)], dtype=torch.float64))
    return lower[0] * tokens, upper[0] * tokens


def _every_mask(conditionals: Mapping[str, float], tokens: int) -> tuple[Rows, Tensor]:
    """All masks of 1..n tokens; the masks of each count together make up the same number of rows."""
    counts = range(1, tokens + 1)
    total = math.lcm(*(math.comb(tokens, count) for count in counts))
    hidden = [
        set(chosen)
        for count in counts
        for chosen in combinations(range(tokens), count)
        for _ in range(total // math.comb(tokens, count))
    ]
    mask = torch.tensor([[token in chosen for token in range(tokens)] for chosen in hidden])
    known = [[_of(conditionals, chosen, token, tokens) for token in range(tokens)] for chosen in hidden]
    logp = torch.tensor(known, dtype=torch.float64)
    count = len(hidden)
    places = torch.arange(tokens).expand(count, -1)
    ids = torch.zeros(count, tokens, dtype=torch.int64)
    owner, draw = torch.zeros(count, dtype=torch.int64), torch.arange(count)
    return Rows(ids, ids[..., None], mask, mask.double(), owner, draw, places, torch.ones_like(mask)), logp[..., None]


def _of(conditionals: Mapping[str, float], hidden: set[int], token: int, tokens: int) -> float:
    if token not in hidden:
        return 0.0
    shown = "".join("0" if place in hidden else "1" for place in reversed(range(tokens)))
    return float(conditionals[f"{shown}:{token}"])
