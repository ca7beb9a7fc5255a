"""The denoising of one answer as data for the viewer: tokens with the forward that committed each, and an order map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dare_bench.leaderboard.escaping import clip, safe, visible
from markupsafe import Markup

#: Longest stored answer that is drawn; longer ones are cut for the viewer and say so.
MAX_TOKENS = 1024
_MAX_PIECE = 32
_WIDTH, _HEIGHT, _LEFT, _TOP = 760.0, 300.0, 46.0, 8.0


@dataclass(frozen=True)
class Token:
    """One position: its text, the 0-based forward that committed it (-1: never), confidence in [0, 1] or None."""

    piece: str
    step: int
    confidence: float | None


@dataclass(frozen=True)
class Denoising:
    """What the viewer shows.

    Attributes:
        tokens: by position. n_forwards: forwards of this row. block_starts: positions where blocks begin. kinds: one
        per forward. order_map: SVG of position x forward. left_to_right: Kendall's tau between position and commit
        forward, None when it is not defined. n_cut: positions left out for length.
    """

    tokens: tuple[Token, ...]
    n_forwards: int
    block_starts: tuple[int, ...]
    kinds: tuple[str, ...]
    order_map: Markup
    left_to_right: float | None
    n_cut: int


def denoising(trajectory: Mapping[str, Any]) -> Denoising:
    """Prepare a stored trajectory.

    Args:
        trajectory: columns of the `trajectory` table: pieces, step_map, confidence, block_starts, kinds.

    Returns:
        The viewer's data.
    """
    steps = [int(step) for step in trajectory["step_map"]]
    pieces = [str(piece) for piece in trajectory["pieces"]]
    confidences = trajectory["confidence"] or []
    n_forwards = max([len(trajectory["kinds"]), *(step + 1 for step in steps)], default=0)
    kept = min(len(pieces), len(steps), MAX_TOKENS)
    tokens = tuple(
        Token(
            visible(clip(pieces[i], _MAX_PIECE)[0]), steps[i], float(confidences[i]) if i < len(confidences) else None
        )
        for i in range(kept)
    )
    starts = tuple(start for start in trajectory["block_starts"] if 0 <= start < kept)
    committed = [(i, token.step) for i, token in enumerate(tokens) if token.step >= 0]
    return Denoising(
        tokens=tokens,
        n_forwards=n_forwards,
        block_starts=starts,
        kinds=tuple(str(kind) for kind in trajectory["kinds"]),
        order_map=_order_map(tokens, n_forwards, starts, trajectory["kinds"]),
        left_to_right=_tau(committed),
        n_cut=max(len(pieces), len(steps)) - kept,
    )


def _tau(committed: Sequence[tuple[int, int]]) -> float | None:
    if len({step for _, step in committed}) < 2:
        return None
    from scipy import stats  # a second of imports that only the site needs

    tau = stats.kendalltau([i for i, _ in committed], [step for _, step in committed]).statistic
    return float(tau)


def _order_map(tokens: Sequence[Token], n_forwards: int, starts: Sequence[int], kinds: Sequence[str]) -> Markup:
    """Grid of positions (across) and forwards (down); one cell per committed token, darker = more confident."""
    if not tokens or n_forwards == 0:
        return Markup("")
    n = len(tokens)
    across = max(2.0, min(16.0, (_WIDTH - _LEFT - 10) / n))
    down = max(1.5, min(16.0, _HEIGHT / n_forwards))
    floor = _TOP + down * n_forwards
    width, height = _LEFT + across * n + 10, floor + 34
    parts = [
        f'<svg class="map" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img" '
        'aria-labelledby="map-t map-d"><title id="map-t">Order map</title>'
        f'<desc id="map-d">{n} positions across, {n_forwards} forwards down; a cell marks the forward that committed '
        "a position, darker when the model was more confident. Vertical lines are block boundaries.</desc>",
        f'<rect class="frame" x="{_LEFT:.1f}" y="{_TOP:.1f}" width="{across * n:.1f}" height="{floor - _TOP:.1f}"/>',
    ]
    for forward, kind in enumerate(kinds):
        if kind != "denoise":
            y = _TOP + down * (forward + 0.5)
            parts.append(
                f'<path class="kind" d="M{_LEFT - 8:.1f} {y - 3:.1f}l6 3l-6 3z">'
                f"<title>{safe(f'forward {forward + 1}: {kind}')}</title></path>"
            )
    for start in starts:
        if start:
            x = _LEFT + across * start
            parts.append(f'<path class="block" d="M{x:.1f} {_TOP:.1f}V{floor:.1f}"/>')
    gap = 0.5 if across > 4 and down > 4 else 0.0
    for i, token in enumerate(tokens):
        if 0 <= token.step < n_forwards:
            shade = "" if token.confidence is None else f' fill-opacity="{0.15 + 0.85 * _unit(token.confidence):.2f}"'
            parts.append(
                f'<rect class="at" data-s="{token.step}" x="{_LEFT + across * i + gap:.1f}" '
                f'y="{_TOP + down * token.step + gap:.1f}" width="{across - 2 * gap:.1f}" '
                f'height="{max(1.0, down - 2 * gap):.1f}"{shade}/>'
            )
    parts.append(
        f'<path class="now" d="M{_LEFT:.1f} {floor:.1f}h{across * n:.1f}" data-top="{_TOP}" data-row="{down}"/>'
    )
    for position in _ticks(n):
        x = _LEFT + across * (position - 0.5)
        parts.append(f'<text x="{x:.1f}" y="{floor + 14:.1f}" text-anchor="middle">{position}</text>')
    for forward in _ticks(n_forwards):
        y = _TOP + down * (forward - 0.5)
        parts.append(f'<text x="{_LEFT - 12:.1f}" y="{y + 3.5:.1f}" text-anchor="end">{forward}</text>')
    parts.append(
        f'<text x="{_LEFT:.1f}" y="{floor + 29:.1f}">position →</text>'
        f'<text x="10" y="{_TOP + 44:.1f}" transform="rotate(-90 10 {_TOP + 44:.1f})" text-anchor="middle">'
        "← forward</text></svg>"
    )
    return Markup("".join(parts))


def _unit(confidence: float) -> float:
    return min(1.0, max(0.0, confidence)) if confidence == confidence else 0.0  # NaN shows as no confidence


def _ticks(n: int) -> list[int]:
    """1-based round positions, at most about eight."""
    step = next(s for s in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 10**9) if n <= 8 * s)
    return [1, *range(step, n + 1, step)] if step > 1 else list(range(1, n + 1))
