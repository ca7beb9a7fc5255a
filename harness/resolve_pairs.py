"""Which decoder fits which model: settings that a family's engine does not honour are refused, unless excluded."""

from __future__ import annotations

import itertools

from dare_bench.dare.decoding import fit
from dare_bench.dare.families.registry import get_family
from dare_bench.harness.errors import shorten
from dare_bench.harness.grid import Cell, is_excluded
from dare_bench.harness.reporter import Reporter
from dare_bench.harness.resolve_decoding import effective
from dare_bench.harness.resolved import Decoding, Model, Suite


def check_decoders(report: Reporter, suite: Suite) -> None:
    """Refuse pairs of a model and a decoder whose settings would be ignored; `exclude` may leave them out.

    Args:
        report: collects problems.
        suite: names looked up.
    """
    for (index, decoder), model in itertools.product(enumerate(suite.decoders), suite.models):
        family = get_family(model.family)
        settings = effective(decoder, model)
        unsound = fit.problems(settings, family.attention, family.shift) if family.decoder_fields is None else []
        if unsound and _has_cells(suite, model, decoder):
            problem = unsound[0]
            report.add(
                ("decoders", index, *((problem.field,) if problem.field in decoder.given else ())),
                f"{problem.said} (family {model.family})",
                given=f"{model.name} × {decoder.name}: {shorten(getattr(settings, problem.field))}",
                allowed=f"{problem.allowed}; or leave the pair out with "
                f"exclude: [{{model: {model.name}, decoder: {decoder.name}}}]",
            )
            continue
        ignored = unhonoured(decoder.given, model.family)
        if not ignored or not _has_cells(suite, model, decoder):
            continue
        honoured = sorted((get_family(model.family).decoder_fields or frozenset()) - {"name"})
        key = "selector" if "selector" in ignored else ignored[0]
        given = {field: getattr(decoder.config, field) for field in ignored}
        report.add(
            ("decoders", index, key),
            f"the family {model.family} of the model {model.name} does not honour {', '.join(ignored)}",
            given=f"{model.name} × {decoder.name}: {shorten(given)}",
            allowed=f"{', '.join(honoured)}; or leave the pair out with "
            f"exclude: [{{model: {model.name}, decoder: {decoder.name}}}]",
        )


def unhonoured(given: tuple[str, ...], family: str) -> list[str]:
    """Fields of a decoder that the engine of a family would ignore.

    Args:
        given: fields that are set.
        family: name.
    """
    honoured = get_family(family).decoder_fields
    if honoured is None:
        return []
    return [field for field in given if field not in honoured and not field.endswith("_options")]


def _has_cells(suite: Suite, model: Model, decoder: Decoding) -> bool:
    """Whether `exclude` leaves any cell of a pair."""
    cells = (
        Cell(model, recipe, task, decoder, seed)
        for recipe, task, seed in itertools.product(suite.recipes, suite.tasks, suite.seeds)
        if recipe.trains(model)
    )
    return any(not is_excluded(cell, suite) for cell in cells)
