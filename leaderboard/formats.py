"""How numbers read: one decimal for percent, two significant digits for small p, short units for large counts."""

from __future__ import annotations

import math


def percent(rate: float | None) -> str:
    """``0.7254`` -> ``72.5``; None -> ``–``."""
    return "–" if rate is None else f"{100 * rate:.1f}"


def points(delta: float | None) -> str:
    """Signed percentage points: ``0.0212`` -> ``+2.1``; the minus is U+2212; None -> ``–``."""
    if delta is None:
        return "–"
    text = f"{100 * delta:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\u2212")


def p_value(p: float | None) -> str:
    """``<0.001`` below the floor, two significant digits below 0.1, two decimals above."""
    if p is None:
        return "–"
    if p < 0.001:
        return "<0.001"
    if p < 0.0995:
        return f"{p:.{1 - math.floor(math.log10(p))}f}"
    return f"{p:.2f}"


def quantity(value: float | None, digits: int = 3) -> str:
    """A count or size in three significant digits with k, M, G, T, P or E; None -> ``–``."""
    if value is None:
        return "–"
    if value != 0 and abs(value) < 1:
        return f"{value:.2g}"
    scaled, unit = float(value), ""
    for unit in ("", "k", "M", "G", "T", "P", "E"):
        if abs(scaled) < 999.5 or unit == "E":
            break
        scaled /= 1000
    whole = len(str(int(abs(scaled))))
    text = f"{scaled:.{max(0, digits - whole)}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{text} {unit}".strip() if unit else text


def seconds(value: float | None) -> str:
    """A duration: ``0.42 s``, ``12 s``, ``3 min 20 s``, ``2.5 h``; None -> ``–``."""
    if value is None:
        return "–"
    if value < 10:
        return f"{value:.2g} s"
    if value < 60:
        return f"{value:.0f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{value / 3600:.1f} h"


def counted(n: int, word: str) -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


FILTERS = {
    "percent": percent,
    "points": points,
    "p": p_value,
    "quantity": quantity,
    "seconds": seconds,
    "counted": counted,
}
