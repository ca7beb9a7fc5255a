"""Look up every name of a manifest; collect all problems, then refuse or return a resolved suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_bench.harness.errors import ManifestError, nearest, shorten
from dare_bench.harness.manifest import BenchmarkItem, Manifest
from dare_bench.harness.manifest_yaml import Document, KeyPath
from dare_bench.harness.reporter import Reporter
from dare_bench.harness.resolve_decoding import resolve_decoder
from dare_bench.harness.resolve_models import resolve_model
from dare_bench.harness.resolve_pairs import check_decoders
from dare_bench.harness.resolve_training import resolve_recipes
from dare_bench.harness.resolved import Suite, Task
from dare_bench.suites.benchmarks import registry as benchmark_registry
from dare_bench.suites.scoring import registry as scorer_registry


def resolve(document: Document, manifest: Manifest, limit: int | None = None) -> Suite:
    """Look up a manifest's names.

    Args:
        document: positions for messages.
        manifest: checked for shape.
        limit: ``--limit``: rows per benchmark, the smaller of this and the manifest's.

    Returns:
        The suite, every default filled in.

    Raises:
        ManifestError: with all problems.
    """
    report = Reporter(document)
    models = [resolve_model(report, ("models", index), item) for index, item in enumerate(manifest.models)]
    tasks = [_task(report, ("benchmarks", index), item, limit) for index, item in enumerate(manifest.benchmarks)]
    decoders = [resolve_decoder(report, ("decoders", index), item) for index, item in enumerate(manifest.decoders)]
    recipes = resolve_recipes(report, manifest)
    report.duplicates("models", [item.name for item in manifest.models], "one name per model; rename with `name:`")
    labels = [item.label or item.name for item in manifest.algorithms]
    report.duplicates("algorithms", labels, "one label per algorithm; give another with `as: LABEL`")
    report.duplicates("benchmarks", [item.name for item in manifest.benchmarks], "each benchmark once")
    report.duplicates(
        "decoders", [item.name for item in manifest.decoders], "one name per decoder; rename with `name:`"
    )
    report.duplicates("seeds", [str(seed) for seed in manifest.seeds], "each seed once")
    exclude = _exclude(report, manifest, labels)
    suite = Suite(
        name=manifest.suite,
        description=manifest.description,
        models=tuple(model for model in models if model),
        recipes=tuple(recipe for recipe in recipes if recipe),
        tasks=tuple(task for task in tasks if task),
        decoders=tuple(decoder for decoder in decoders if decoder),
        seeds=tuple(manifest.seeds),
        exclude=exclude,
    )
    check_decoders(report, suite)
    if report.problems:
        raise ManifestError(report.problems)
    return suite


def _task(report: Reporter, path: KeyPath, item: BenchmarkItem, limit: int | None) -> Task | None:
    known = benchmark_registry.names()
    if item.name not in known:
        report.unknown((*path, "name"), "benchmark", item.name, known)
        return None
    bench = benchmark_registry.get(item.name)
    protocol = item.protocol or bench.default_protocol
    split = item.split or "test"
    if protocol not in bench.protocols:
        report.unknown((*path, "protocol"), f"protocol of {item.name}", protocol, bench.protocols)
        return None
    if split not in bench.splits:
        report.unknown((*path, "split"), f"split of {item.name}", split, bench.splits)
        return None
    scorer = bench.protocols[protocol].scorer
    refusal = bench.not_scorable or (scorer_registry.get(scorer).refusal() if scorer else None)
    if scorer is None or refusal:
        reason = refusal or f"the protocol {protocol} names no scorer"
        scorable = ", ".join(name for name in known if benchmark_registry.get(name).is_scorable)
        report.add((*path, "name"), f"cannot be scored: {reason}", given=shorten(item.name), allowed=scorable)
        return None
    limits = [value for value in (item.limit, limit) if value is not None]
    return Task(item.name, protocol, split, min(limits) if limits else None, scorer)


def _exclude(report: Reporter, manifest: Manifest, labels: list[str]) -> tuple[Mapping[str, tuple[Any, ...]], ...]:
    known: dict[str, list[Any]] = {
        "model": [item.name for item in manifest.models],
        "algorithm": labels,
        "benchmark": [item.name for item in manifest.benchmarks],
        "decoder": [item.name for item in manifest.decoders],
        "seed": list(manifest.seeds),
    }
    sections = {key: f"{key}s" for key in known}
    # What `--set` took out of the suite cannot be missed: a rule of the file about it has nothing left to do.
    narrowed = {key for key in known if report.document.where((sections[key],)).startswith("--set")}
    found = []
    for index, item in enumerate(manifest.exclude):
        path = ("exclude", index)
        entry = {key: value for key, value in item.model_dump().items() if value is not None}
        if not entry:
            report.add(path, "an exclude entry without a key matches every cell", allowed=", ".join(known))
        rule = {}
        from_file = not report.document.where(path).startswith("--set")
        for key, value in entry.items():
            wanted = value if isinstance(value, list) else [value]
            for one in wanted:
                if one not in known[key] and not (from_file and key in narrowed):
                    allowed = ", ".join(str(name) for name in known[key])
                    near = nearest(one, map(str, known[key]))
                    message = f"matches nothing: no such {key} in this suite"
                    report.add((*path, key), message, given=shorten(one), allowed=allowed, nearest=near)
            rule[key] = tuple(wanted)
        found.append(rule)
    return tuple(found)
