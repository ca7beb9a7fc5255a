"""Many tests at once: Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values so that a whole family keeps its error rate.

    Args:
        p_values: [m] raw p values of one family, in [0, 1].

    Returns:
        [m] adjusted p values in the order given; reject where adjusted <= alpha.

    Source: Holm 1979, sequentially rejective procedure.
    """
    m = len(p_values)
    adjusted = [0.0] * m
    running = 0.0
    for rank, index in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (m - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted
