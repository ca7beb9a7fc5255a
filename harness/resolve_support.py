"""Which entries of an algorithm a suite uses: family × algorithm, what is excluded, and what each entry asks of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dare_bench.dare.algorithms.registry import AlgorithmEntry
from dare_bench.dare.families import places, random_entries
from dare_bench.dare.families import registry as family_registry
from dare_bench.dare.training.config import LoraConfig, TrainConfig
from dare_bench.harness.errors import ManifestError, shorten
from dare_bench.harness.manifest import AlgorithmItem, Manifest, ModelItem
from dare_bench.harness.manifest_yaml import KeyPath
from dare_bench.harness.reporter import Reporter
from dare_bench.suites.benchmarks import registry as benchmark_registry


def used_entries(
    report: Reporter, manifest: Manifest, path: KeyPath, item: AlgorithmItem, entries: Sequence[AlgorithmEntry]
) -> list[AlgorithmEntry]:
    """The entries that the suite's models use; a pair without one is a problem unless `exclude` removes the whole row.

    Args:
        report: collects problems.
        manifest: checked for shape.
        path: of the item.
        item: of the manifest.
        entries: all of the algorithm's name.

    Returns:
        At least one entry.
    """
    label = item.label or item.name
    used, known = [], family_registry.families()
    for model in manifest.models:
        family = family_of(model)
        if family is None or _is_excluded(manifest, model.name, label):
            continue
        is_trained = family not in known or known[family].trainer is not None
        entry = next((entry for entry in entries if is_trained and family in entry.families), None)
        if entry is not None:
            used.append(entry)
            continue
        if not is_trained:
            report.add(
                (*path, "name"),
                f"{model.name} cannot be trained: the family {family} is for evaluation only",
                given=f"{model.name} × {label}",
                allowed=f"base; or leave the pair out with exclude: [{{model: {model.name}, algorithm: {label}}}]",
            )
            continue
        supported = sorted({other for entry in entries for other in entry.families})
        report.add(
            (*path, "name"),
            f"{item.name} does not support the family {family} of the model {model.name}",
            given=f"{model.name} × {label}",
            allowed=f"families {', '.join(supported)}; or leave the pair out with "
            f"exclude: [{{model: {model.name}, algorithm: {label}}}]",
        )
    return [entry for entry in entries if entry in used] or [entries[0]]


def family_of(item: ModelItem) -> str | None:
    """Family of a model of the manifest; None where that is not known (its own check says why)."""
    entry = random_entries.by_source(item.source or "") or family_registry.models().get(item.name)
    if item.family or entry:
        return item.family or entry.family
    if item.path is None:
        return None
    try:
        return family_registry.detect(places.official_config(Path(item.path).expanduser())).name
    except (family_registry.UnknownName, ManifestError, OSError, ValueError):
        return None


def check_pairs(report: Reporter, manifest: Manifest, path: KeyPath, item: AlgorithmItem) -> None:
    """Refuse an algorithm on preference pairs where a benchmark of the training data has none."""
    known = benchmark_registry.names()
    having = [name for name in known if benchmark_registry.get(name).pairs_version is not None]
    for name in manifest.train.data if manifest.train else ():
        if name in known and name not in having:
            message = f"{item.name} trains on chosen/rejected pairs, and {name} has none"
            report.add(
                (*path, "name"), message, given=f"{item.name} on {name}", allowed=f"train.data of {', '.join(having)}"
            )


def check_validation(report: Reporter, manifest: Manifest, path: KeyPath, train: TrainConfig) -> None:
    """Refuse to choose a checkpoint on rows that are trained on, reported, or reserved for testing."""
    _, _, wanted = train.select.partition(":")
    known = benchmark_registry.names()
    used = {(item.name, item.split or "test") for item in manifest.benchmarks}
    for name, given in (manifest.train.data if manifest.train else {}).items():
        if name not in known:
            continue  # its own check says so
        trained = {given} if isinstance(given, str) else set(given)
        free = [
            split for split in benchmark_registry.get(name).splits
            if split != "test" and split not in trained and (name, split) not in used
        ]  # fmt: skip
        if wanted not in free:
            allowed = ", ".join(["last", "step:N", *(f"best_on:{split}" for split in free)])
            message = f"checkpoints are chosen on held-out rows only, and {name} has none of that name"
            report.add(path, message, given=shorten(train.select), allowed=allowed)
    if not train.checkpoint_every:
        message = "choosing among checkpoints needs checkpoints"
        report.add(path, message, given=f"{train.select}, checkpoint_every: 0", allowed="checkpoint_every: N, N >= 1")


def check_experts(report: Reporter, manifest: Manifest, path: KeyPath, item: AlgorithmItem, lora: LoraConfig) -> None:
    """Refuse adapters on experts where a model has none, and with dropout."""
    if not lora.experts:
        return
    if lora.dropout:
        message = "adapted experts are computed as one weight, without dropout"
        report.add((*path, "dropout"), message, given=shorten(lora.dropout), allowed="0 with experts: true")
    label = item.label or item.name
    for model in manifest.models:
        family, entry = family_of(model), family_registry.models().get(model.name)
        config = entry.config if entry else _config_of(model)
        if family is None or not config or _is_excluded(manifest, model.name, label):
            continue
        if family_registry.get_family(family).dims(config).experts is None:
            report.add(
                (*path, "experts"),
                f"the model {model.name} has no experts",
                given=f"{model.name} × {label}",
                allowed=f"experts: false, or exclude: [{{model: {model.name}, algorithm: {label}}}]",
            )


def _config_of(item: ModelItem) -> Mapping[str, Any]:
    if item.path is None:
        return {}
    try:
        return places.official_config(Path(item.path).expanduser())
    except (family_registry.UnknownName, places.WeightsNotHere, places.BadCheckpoint):
        return {}  # its own check says why


def _is_excluded(manifest: Manifest, model: str, label: str) -> bool:
    def holds(value: str | list[str] | None, name: str) -> bool:
        return value is None or name == value or (isinstance(value, list) and name in value)

    whole_rows = [
        rule for rule in manifest.exclude if rule.benchmark is None and rule.decoder is None and rule.seed is None
    ]
    return any(holds(rule.model, model) and holds(rule.algorithm, label) for rule in whole_rows)
