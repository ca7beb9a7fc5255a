"""Fixed noise levels: a quadrature over the level, masks at given levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from dare_bench.dare.algorithms.base import Batch, Context
from dare_bench.dare.diffusion import corruption
from torch import Tensor

QUADRATURES = ("gauss", "midpoint")


def quadrature(points: int, kind: str = "gauss") -> tuple[Tensor, Tensor]:
    """Fixed noise levels and weights for the integral over the level: no level is drawn.

    The expected weighted sum at level t, masking each token with probability t, is a polynomial of degree n - 1 in t. The
    Gauss-Legendre rule is exact for degrees below 2 x points: without bias for responses of up to 2 x points tokens.

    Args:
        points: levels.
        kind: ``gauss`` or ``midpoint`` (equal parts of the range).

    Returns:
        levels float64 [Q] in (0, 1), ascending, and weights float64 [Q] that sum to 1.

    Raises:
        ValueError: for an unknown kind or no points.

    Source:
        Golub, Welsch (1969): nodes are the eigenvalues of the Jacobi matrix of the Legendre polynomials.
    """
    if points < 1:
        raise ValueError(f"points: {points!r}; allowed: at least 1")
    if kind == "midpoint":
        return corruption.even_levels(points, eps=0.0), torch.full((points,), 1 / points, dtype=torch.float64)
    if kind != "gauss":
        raise ValueError(f"unknown quadrature {kind!r}; allowed: {', '.join(QUADRATURES)}")
    order = torch.arange(1, points, dtype=torch.float64)
    beside = order / (4 * order.square() - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(beside.diag(1) + beside.diag(-1))
    return (nodes + 1) / 2, vectors[0].square()


def level_masks(
    context: Context, batch: Batch, allowed: Tensor, levels: Sequence[float] | Tensor, *, stream: str = "level"
) -> Iterator[tuple[Tensor, Tensor]]:
    """Masks at given levels: each allowed position with the probability of the level; weight 1 / level.

    Args:
        context: gives the seeds.
        batch: whose responses are masked.
        allowed: bool [B, S].
        levels: one per draw; repeat a level for several masks at it.
        stream: name of the draws.

    Yields:
        masked bool [B, S], weight float64 [B, 1].
    """
    for draw, level in enumerate(torch.as_tensor(levels, dtype=torch.float64)):
        probability = level.expand(len(batch.ids))
        masked = corruption.bernoulli_mask(context.seeds(f"{stream} {draw}", batch), probability, allowed)
        yield masked, (1 / probability)[:, None]
