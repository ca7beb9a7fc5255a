"""Histograms of counts as plain SVG: a thousand cell pages would spend a minute in a plotting library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from dare_bench.leaderboard.formats import counted
from markupsafe import Markup

_WIDTH, _HEIGHT, _BASE, _BINS = 330.0, 120.0, 96.0, 24


def bins(values: Sequence[int]) -> tuple[list[int], list[int]]:
    """Count whole numbers in bins of equal whole width.

    Args:
        values: at least one integer.

    Returns:
        (left edges and one last right edge, counts), at most 24 bins.
    """
    lo, hi = min(values), max(values)
    width = max(1, -(-(hi - lo + 1) // _BINS))
    edges = list(range(lo, hi + width + 1, width))
    counts, _ = np.histogram(values, bins=edges)
    return edges, [int(count) for count in counts]


def bars(values: Sequence[int], ident: str, title: str, unit: str) -> Markup:
    """Draw a histogram.

    Args:
        values: one whole number per answer.
        ident: unique on the page.
        title: heading.
        unit: what is counted.

    Returns:
        An ``<svg>`` whose description holds range and median; every bar has its count as a tooltip.
    """
    edges, counts = bins(values)
    top = max(counts)
    slot = (_WIDTH - 20) / len(counts)
    median = float(np.median(values))
    parts = [
        f'<svg class="hist" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" '
        f'role="img" aria-labelledby="{ident}-t {ident}-d"><title id="{ident}-t">{title}</title>'
        f'<desc id="{ident}-d">{counted(len(values), "answer")}, from {min(values)} to {max(values)} {unit}, '
        f"median {median:g}.</desc>"
    ]
    for i, count in enumerate(counts):
        if count:
            height = max(1.0, 84.0 * count / top)
            last = edges[i + 1] - 1
            span = f"{edges[i]}" if last == edges[i] else f"{edges[i]}–{last}"
            width = max(1.0, min(slot, 40) - 1)
            parts.append(
                f'<rect x="{10 + slot * i + 0.5:.1f}" y="{_BASE - height:.1f}" width="{width:.1f}" '
                f'height="{height:.1f}"><title>{span} {unit}: {count}</title></rect>'
            )
    parts.append(
        f'<path d="M10 {_BASE}H{_WIDTH - 10}"/>'
        f'<text x="10" y="{_BASE + 15}">{min(values)}</text>'
        f'<text x="{_WIDTH / 2}" y="{_BASE + 15}" text-anchor="middle">{unit} · median {median:g}</text>'
        f'<text x="{_WIDTH - 10}" y="{_BASE + 15}" text-anchor="end">{max(values)}</text></svg>'
    )
    return Markup("".join(parts))
