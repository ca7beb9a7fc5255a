"""Charts drawn with matplotlib: accuracy against forwards, training curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dare_bench.leaderboard.figures import INK, drawing, inline_svg
from dare_bench.leaderboard.formats import percent, quantity
from dare_bench.leaderboard.models import LeaderRow, Table
from dare_bench.results.queries import TrainingPointView
from markupsafe import Markup

#: One shape and colour per algorithm; the shape alone tells them apart.
_SHAPES = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
_COLOURS = ("s1", "s2", "s3", "s4", "s5", "s6", "s7")
_FILLS = ("full", "none", "left", "bottom", "right", "top")
_MAX_PANELS = 6
_LEGEND = 1.75  # inches
_MAX_CURVES = 4
_MAX_LISTED = 16
_CURVE_ORDER = ("loss", "reward", "accuracy", "kl", "entropy", "grad_norm", "lr")


def accuracy_against_forwards(table: Table) -> tuple[tuple[tuple[str, Markup], ...], str]:
    """One chart per benchmark of a table, one panel per model: accuracy over forwards per answer (log scale).

    Args:
        table: with entries computed.

    Returns:
        (pairs of benchmark and chart, note on what was left out; empty when all is shown).
    """
    shown = [row for row in table.rows if any(_is_drawn(row, column.name) for column in table.benchmarks)]
    labels = sorted({row.label for row in shown}, key=lambda label: (label != "base", label))
    decoders = sorted({row.decoder for row in shown}, key=lambda name: (name != "default", name))
    drawn: list[tuple[str, Markup]] = []
    panels = left = 0
    for number, column in enumerate(table.benchmarks):
        models = [(m, rows) for m, rows in table.models if any(_is_drawn(row, column.name) for row in rows)]
        room = max(0, _MAX_PANELS - panels)
        left += max(0, len(models) - room)
        models = models[:room]
        panels += len(models)
        if models:
            drawn.append((column.name, _scatter(table, column.name, number, models, labels, decoders)))
    note = f"The first {panels} of {panels + left} panels are drawn; the table holds every number." if left else ""
    return tuple(drawn), note


def training_curves(points: Sequence[TrainingPointView], ident: str) -> Markup | None:
    """Small panels of what a training run logged.

    Args:
        points: by step.
        ident: id prefix on the page.

    Returns:
        The chart, or None when fewer than two points hold numbers.
    """
    names = curve_names(points)[:_MAX_CURVES]
    if not names:
        return None
    width = 2.35 * len(names) + 0.2
    figure, rc = _figure(width, 1.9)
    import matplotlib as mpl

    with mpl.rc_context(rc):
        for place, name in enumerate(names, 1):
            axes = figure.add_subplot(1, len(names), place)
            steps = [p.step for p in points if _is_number(p.metrics.get(name))]
            values = [p.metrics[name] for p in points if _is_number(p.metrics.get(name))]
            axes.plot(steps, values, color=INK["s1"], linewidth=1.4)
            axes.set_title(_plain(name))
            axes.set_xlabel("optimiser step")
            axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4, integer=True))
            axes.yaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
        # Fixed margins: a layout pass would take longer than the drawing, and there is one chart per training run.
        figure.subplots_adjust(left=0.62 / width, right=1 - 0.12 / width, bottom=0.26, top=0.88, wspace=0.42)
        described = "; ".join(
            f"{name} from {quantity(points[0].metrics.get(name))} to {quantity(points[-1].metrics.get(name))}"
            for name in names
            if _is_number(points[0].metrics.get(name)) and _is_number(points[-1].metrics.get(name))
        )
        return inline_svg(figure, ident, "Training curves", f"Over {points[-1].step} optimiser steps: {described}.")


def curve_names(points: Sequence[TrainingPointView]) -> list[str]:
    """Metrics logged at least twice as finite numbers, the most telling ones first."""
    counts: dict[str, int] = {}
    for point in points:
        for name, value in point.metrics.items():
            if _is_number(value):
                counts[name] = counts.get(name, 0) + 1

    def place(name: str) -> tuple[int, str]:
        stems = [i for i, stem in enumerate(_CURVE_ORDER) if stem in name]
        return (stems[0] if stems else len(_CURVE_ORDER), name)

    return sorted((name for name, count in counts.items() if count > 1), key=place)


def _scatter(
    table: Table,
    benchmark: str,
    number: int,
    models: Sequence[tuple[str, Sequence[LeaderRow]]],
    labels: Sequence[str],
    decoders: Sequence[str],
) -> Markup:
    import matplotlib as mpl
    from matplotlib.lines import Line2D

    across = min(3, len(models))
    down = math.ceil(len(models) / across)
    figure, rc = _figure(2.15 * across + _LEGEND, 2.1 * down + 0.2)
    said: list[str] = []
    with mpl.rc_context(rc):
        grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        for place, (model, rows) in enumerate(models):
            axes = grid[place // across][place % across]
            for row in rows:
                if not _is_drawn(row, benchmark):
                    continue
                _point(axes, row, benchmark, labels, decoders)
                entry = row.entries[benchmark]
                said.append(
                    f"{model} {row.label} {row.decoder}: {percent(entry.accuracy)} % at {entry.cost.nfe_mean:.1f}"
                )
            axes.set_title(_plain(model))
            axes.set_xscale("log", base=2)
            axes.yaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
            axes.margins(x=0.15, y=0.12)
            if place % across == 0:
                axes.set_ylabel("accuracy, %")
            if place + across >= len(models):
                axes.set_xlabel("forwards per answer")
                axes.tick_params(labelbottom=True)
        for place in range(len(models), down * across):
            grid[place // across][place % across].set_visible(False)
        _ticks(grid[0][0])
        keys = [
            Line2D(
                [], [], linestyle="", label=_plain(label), markersize=6, **_style(label, decoders[0], labels, decoders)
            )
            for label in labels
        ]
        if len(decoders) > 1:
            keys += [
                Line2D(
                    [], [], linestyle="", marker="o", fillstyle=_FILLS[i % len(_FILLS)], markersize=6,
                    color=INK["muted"], markerfacecoloralt="none", label=_plain(f"{name} decoder"),
                )
                for i, name in enumerate(decoders)
            ]  # fmt: skip
        figure.tight_layout(pad=0.6, rect=(0, 0, 1 - _LEGEND / (2.15 * across + _LEGEND), 1))
        figure.legend(handles=keys, loc="center right", handletextpad=0.3, borderaxespad=0.2, fontsize=8.5)
        return inline_svg(
            figure,
            f"{table.ident}-c{number}",
            f"{benchmark}: accuracy against forwards per answer",
            f"Up and to the left is better. Bars are 95 % intervals. {_listed(said)}",
        )


def _listed(said: Sequence[str]) -> str:
    if len(said) > _MAX_LISTED:
        return f"{len(said)} points; the table holds their numbers."
    return "; ".join(said) + " forwards."


def _ticks(axes: Any) -> None:
    """Whole forwards as ticks (panels share the axis): powers of two, or a linear choice within one octave."""
    import matplotlib as mpl

    lo, hi = axes.get_xlim()
    values = [2**i for i in range(20) if lo <= 2**i <= hi]
    if len(values) < 2:
        values = [v for v in mpl.ticker.MaxNLocator(4, integer=True).tick_values(lo, hi) if lo <= v <= hi]
    axes.xaxis.set_major_locator(mpl.ticker.FixedLocator(values))
    axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())


def _point(axes: Any, row: LeaderRow, benchmark: str, labels: Sequence[str], decoders: Sequence[str]) -> None:
    entry = row.entries[benchmark]
    if entry.cost is None or entry.accuracy is None or entry.interval is None:
        return
    style = _style(row.label, row.decoder, labels, decoders)
    # Rows with the same decoder need the same forwards: a small shift keeps their bars apart.
    shift = 1 + 0.03 * (labels.index(row.label) - (len(labels) - 1) / 2)
    x = entry.cost.nfe_mean * shift
    axes.plot([x, x], [100 * entry.interval.lo, 100 * entry.interval.hi], color=style["color"], linewidth=1.1)
    axes.plot([x], [100 * entry.accuracy], linestyle="", markersize=6.5, **style)


def _style(label: str, decoder: str, labels: Sequence[str], decoders: Sequence[str]) -> dict[str, Any]:
    i, fill = labels.index(label), _FILLS[decoders.index(decoder) % len(_FILLS)]
    style = {"marker": _SHAPES[i % len(_SHAPES)], "color": INK[_COLOURS[i % len(_COLOURS)]], "fillstyle": fill}
    return {**style, "markerfacecoloralt": "none"}


def _figure(width: float, height: float) -> tuple[Any, dict[str, Any]]:
    figure_class, canvas_class, rc = drawing()
    import matplotlib as mpl

    with mpl.rc_context(rc):
        figure = figure_class(figsize=(width, height))
        canvas_class(figure)
    return figure, rc


def _is_drawn(row: LeaderRow, benchmark: str) -> bool:
    entry = row.entries.get(benchmark)
    return entry is not None and entry.accuracy is not None and entry.cost is not None and entry.cost.nfe_mean > 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _plain(text: str) -> str:
    """A name as matplotlib text: no mathematics between dollar signs, nothing invisible, not too long."""
    from dare_bench.leaderboard.escaping import visible

    shown = visible(text).replace("\n", " ")
    shown = shown if len(shown) <= 40 else shown[:39] + "…"
    return shown.replace("$", r"\$")
