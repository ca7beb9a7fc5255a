"""From a matplotlib figure to inline SVG that follows the page's theme and is the same bytes every time."""

from __future__ import annotations

import io
import re
from functools import cache
from typing import TYPE_CHECKING

from dare_bench.leaderboard.escaping import safe
from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colours drawn by matplotlib that stand for a variable of style.css (`--ink` and so on).
INK = {
    "ink": "#010101",
    "muted": "#020202",
    "line": "#030303",
    "panel": "#040404",
    "accent": "#050505",
    "s1": "#060601",
    "s2": "#060602",
    "s3": "#060603",
    "s4": "#060604",
    "s5": "#060605",
    "s6": "#060606",
    "s7": "#060607",
}
_VARIABLE = {value: name for name, value in INK.items()}

#: Points of matplotlib to pixels of the page.
_SCALE = 1.3

RC = {
    "svg.hashsalt": "dare-bench",
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.edgecolor": INK["line"],
    "axes.labelcolor": INK["muted"],
    "axes.titlecolor": INK["ink"],
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "grid.color": INK["line"],
    "grid.linewidth": 0.6,
    "text.color": INK["ink"],
    "xtick.color": INK["line"],
    "ytick.color": INK["line"],
    "xtick.labelcolor": INK["muted"],
    "ytick.labelcolor": INK["muted"],
    "legend.frameon": False,
    "path.simplify": True,
}


@cache
def drawing() -> tuple[type, type, dict]:
    """Import matplotlib once (0.6 s) without pyplot and its global state.

    Returns:
        (Figure class, SVG canvas class, rc parameters).
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    return Figure, FigureCanvasSVG, RC


def inline_svg(figure: Figure, ident: str, title: str, description: str) -> Markup:
    """Serialise a figure for use inside a page.

    Style attributes become presentation attributes (a strict style policy forbids the former), stand-in colours
    become variables of the style sheet, ids get a prefix so that several charts share a page, metadata goes.

    Args:
        figure: a drawn figure, made under `RC`.
        ident: unique on the page, ``[a-z0-9-]+``.
        title: what the chart shows; read by screen readers.
        description: what can be read from it, in words.

    Returns:
        An ``<svg>`` element.
    """
    buffer = io.StringIO()
    # `savefig` draws twice, once without output to settle layouts; these figures have none to settle.
    figure.canvas.print_svg(buffer, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r"<style.*?</style>\s*", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)
    svg = re.sub(r'\sstyle="([^"]*)"', _presentation, svg)
    # Nothing is drawn outside its axes, so clipping goes, and with it the need for groups and most ids.
    svg = re.sub(r'\sclip-path="[^"]*"|\stransform="rotate\(-?0 [^"]*"|\sid="(?!m[0-9a-f]{10}")[^"]*"', "", svg)
    svg = re.sub(r"<clipPath.*?</clipPath>", "", svg, flags=re.S)
    svg = re.sub(r'</?g>|<path d="[^"]*" fill="none"/>', "", svg)
    names: dict[str, str] = {}
    svg = re.sub(
        r'(\sid="|xlink:href="#)(m[0-9a-f]{10})"',
        lambda m: f'{m.group(1).replace("xlink:", "")}{ident}-{names.setdefault(m.group(2), str(len(names)))}"',
        svg,
    )
    svg = re.sub(r"#0[0-9]0[0-9]0[0-9]", lambda m: _colour(m.group()), svg)
    # Coordinates need no more than a tenth of a point; texts keep all their digits.
    svg = re.sub(r"<[^>]*>", lambda m: re.sub(r"(\d+\.\d)\d+", r"\1", m.group()), svg)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    svg = re.sub(r'>\s+<|\s+(?=")', lambda m: "><" if ">" in m.group() else "", svg)
    svg = svg.replace("<defs></defs>", "")
    head = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    width, height = head.groups() if head else ("100", "100")
    shown = f'width="{_SCALE * float(width):.0f}" height="{_SCALE * float(height):.0f}"'
    label = (
        f'<svg class="chart" viewBox="0 0 {width} {height}" {shown} role="img" '
        f'aria-labelledby="{ident}-t {ident}-d"><title id="{ident}-t">{safe(title)}</title>'
        f'<desc id="{ident}-d">{safe(description)}</desc>'
    )
    return Markup(re.sub(r"^<svg[^>]*>", lambda _: label, svg).strip())


def _colour(value: str) -> str:
    return f"var(--{_VARIABLE[value]})" if value in _VARIABLE else value


def _presentation(match: re.Match[str]) -> str:
    attributes = []
    for declaration in match.group(1).split(";"):
        name, _, value = declaration.strip().partition(":")
        # The page's own font is used; a shorthand `font` is no presentation attribute.
        if name and name not in ("font-family", "font"):
            attributes.append(f'{name}="{value.strip()}"')
    return "".join(f" {a}" for a in attributes)
