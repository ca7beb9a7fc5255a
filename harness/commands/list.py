"""`dare-bench list KIND`."""

from __future__ import annotations

from collections.abc import Callable

import click

Table = tuple[list[str], list[list[str]]]


@click.command("list")
@click.argument("kind", type=click.Choice(["models", "algorithms", "benchmarks", "decoders", "suites"]))
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def command(kind: str, debug: bool) -> None:
    """List what can be named in a manifest."""
    from dare_bench.harness.table import text_table

    makers: dict[str, Callable[[], Table]] = {
        "models": _models,
        "algorithms": _algorithms,
        "benchmarks": _benchmarks,
        "decoders": _decoders,
        "suites": _suites,
    }
    click.echo(text_table(*makers[kind]()))


def _models() -> Table:
    from dare_bench.dare.families.registry import get_family, models
    from dare_bench.harness.weights import locate

    rows = []
    for entry in models().values():
        here = "no" if locate(entry.name, entry.source, entry.revision).missing else "yes"
        count = f"{get_family(entry.family).parameters(entry.config):,}"
        rows.append([entry.name, entry.family, count, here, entry.source, entry.description])
    return ["model", "family", "parameters", "here", "source", "description"], rows


def _algorithms() -> Table:
    from dare_bench.dare.algorithms.registry import algorithms

    rows = [["base", "all", "-", "The model as it is; nothing is trained."]]
    for entry in (entry for entries in algorithms().values() for entry in entries):
        presets = ", ".join(sorted({*entry.presets, *entry.train_presets})) or "-"
        rows.append([entry.name, ", ".join(sorted(entry.families)), presets, entry.summary])
    return ["algorithm", "families", "presets", "summary"], rows


def _benchmarks() -> Table:
    from dare_bench.suites.benchmarks import registry

    rows = []
    for name in registry.names():
        bench = registry.get(name)
        scored = "yes" if bench.is_scorable else "no"
        rows.append([name, ", ".join(bench.splits), ", ".join(bench.protocols), scored, bench.description])
    return ["benchmark", "splits", "protocols", "scored", "description"], rows


def _decoders() -> Table:
    from dare_bench.dare.decoding.selectors import selectors

    rows = [[name, ", ".join(entry.options) or "-", entry.summary] for name, entry in selectors().items()]
    return ["selector", "options", "summary"], rows


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
