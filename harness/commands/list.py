"""`dare-bench list KIND`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dare_bench.dare.decoding.options import Option

Table = tuple[list[str], list[list[str]]]


@click.command("list")
@click.argument("kind", type=click.Choice(["models", "algorithms", "benchmarks", "decoders", "rewards", "suites"]))
@click.option("--json", "as_json", is_flag=True, help="Models with exact numbers, as JSON.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def command(kind: str, as_json: bool, debug: bool) -> None:
    """List what can be named in a manifest."""
    from dare_bench.harness.errors import UserError
    from dare_bench.harness.table import text_table

    if as_json:
        if kind != "models":
            raise UserError(f"--json lists models, not {kind}: `dare-bench list models --json`")
        click.echo(json.dumps(_model_facts(), indent=1))
        return

    makers: dict[str, Callable[[], Table]] = {
        "models": _models,
        "algorithms": _algorithms,
        "benchmarks": _benchmarks,
        "decoders": _decoders,
        "rewards": _rewards,
        "suites": _suites,
    }
    click.echo(text_table(*makers[kind]()))
    if kind == "algorithms":
        click.echo("\n" + text_table(*_support()))


def _model_facts() -> list[dict[str, Any]]:
    """Sizes of every named checkpoint, exact, and whether its weights are here."""
    from dare_bench.dare.families.registry import get_family, models
    from dare_bench.harness.weights import locate

    found = []
    for entry in models().values():
        dims = get_family(entry.family).dims(entry.config)
        found.append(
            {
                "name": entry.name,
                "family": entry.family,
                "parameters": dims.parameters,
                "active_parameters": dims.active if dims.experts else dims.parameters,
                "mixture": dims.experts is not None,
                "weights_bytes_bfloat16": 2 * dims.parameters,
                "kv_bytes_per_token_bfloat16": 2 * dims.kv_values_per_token,
                "here": not locate(entry.name, entry.source, entry.revision).missing,
                "source": entry.source,
                "revision": entry.revision,
                "description": entry.description,
            }
        )
    return found


def _models() -> Table:
    rows = []
    for facts in _model_facts():
        sizes = [_count(facts["parameters"]), _count(facts["active_parameters"]) if facts["mixture"] else "all"]
        sizes.append(f"{facts['weights_bytes_bfloat16'] / 2**30:.1f}")
        sizes.append(f"{facts['kv_bytes_per_token_bfloat16'] / 2**10:g}")
        rows.append([facts["name"], facts["family"], *sizes, "yes" if facts["here"] else "no", facts["source"]])
    return ["model", "family", "parameters", "active", "bf16 GiB", "K/V KiB", "here", "source"], rows


def _count(value: int) -> str:
    """Weights in words, four digits."""
    unit, name = (10**9, "B") if value >= 10**9 else (10**6, "M")
    return f"{value / unit:.2f} {name}"


def _algorithms() -> Table:
    from dare_bench.dare.algorithms.registry import algorithms

    rows = [["base", "all", "-", "The model as it is; nothing is trained."]]
    for entry in (entry for entries in algorithms().values() for entry in entries):
        presets = ", ".join(sorted({*entry.presets, *entry.train_presets})) or "-"
        rows.append([entry.name, ", ".join(sorted(entry.families)), presets, entry.summary])
    return ["algorithm", "families", "presets", "summary"], rows


def _support() -> Table:
    """Algorithm x family: `yes` where a test trains the pair, `untested` where nothing recorded that one passed."""
    from importlib.resources import files

    from dare_bench.dare.algorithms.registry import algorithms
    from dare_bench.dare.families.registry import families

    record = json.loads((files("dare_bench.dare.algorithms") / "support.json").read_text("utf-8"))["cells"]
    columns = sorted(name for name, family in families().items() if family.trainer is not None)
    rows = []
    for name, entries in algorithms().items():
        offered = {family for entry in entries for family in entry.families}
        tested = {*record.get(name, []), *({"autoregressive"} & offered)}  # TRL's trainers have tests of their own
        words = ["yes" if family in tested else "untested" if family in offered else "-" for family in columns]
        rows.append([name, *words])
    return ["supported", *columns], rows


def _benchmarks() -> Table:
    from dare_bench.suites.benchmarks import registry

    rows = []
    for name in registry.names():
        bench = registry.get(name)
        scored = "yes" if bench.is_scorable else "no"
        rows.append([name, ", ".join(bench.splits), ", ".join(bench.protocols), scored, bench.description])
    return ["benchmark", "splits", "protocols", "scored", "description"], rows


def _decoders() -> Table:
    from dare_bench.dare.decoding import compat, editors, presets, schedulers, selectors, weightings
    from dare_bench.harness.resolve_parts import CACHES

    parts: dict[str, dict[str, Any]] = {
        "selector": selectors.selectors(),
        "scheduler": schedulers.schedulers(),
        "cache": CACHES,
        "editor": editors.editors(),
        "weighting": weightings.weightings(),
        "compat": compat.QUIRKS,
    }
    rows = [
        [part, name, ", ".join(map(_option, entry.options.items())) or "-", entry.summary]
        for part, entries in parts.items()
        for name, entry in entries.items()
    ]
    for entry in presets.presets().values():
        rows.append(
            ["preset", entry.name, "any field", f"{entry.summary} {', '.join(entry.families)}: {entry.source}."]
        )
    return ["part", "name", "options", "summary"], rows


def _option(item: tuple[str, Option]) -> str:
    """An option with its default, as a manifest would write it."""
    name, option = item
    if option.default is None or option.default is False:
        return name
    return f"{name}: {option.default}"


def _rewards() -> Table:
    import dataclasses

    from dare_bench.suites.rewards import rewards

    rows = []
    for name, cls in rewards().items():
        options = [
            each.name if each.default is None or each.default is False else f"{each.name}: {json.dumps(each.default)}"
            for each in dataclasses.fields(cls.options_class)
        ]
        rows.append([name, ", ".join(cls.columns) or "-", ", ".join(options), cls.summary])
    return ["reward", "columns", "options", "summary"], rows


def _suites() -> Table:
    from dare_bench.harness.manifest import load_manifest
    from dare_bench.harness.prepare import shipped_suites

    rows = []
    for name, path in shipped_suites().items():
        _, manifest = load_manifest(path, str(path))
        size = len(manifest.models) * len(manifest.algorithms) * len(manifest.benchmarks)
        size *= len(manifest.decoders) * len(manifest.seeds)
        rows.append([name, str(size), manifest.description])
    return ["suite", "cells at most", "description"], rows
