"""Look up a manifest's models: family, where the weights are, and the facts that the manifest gives for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dare_bench.dare.families import places, random_entries
from dare_bench.dare.families import registry as family_registry
from dare_bench.harness.errors import shorten
from dare_bench.harness.manifest import ModelItem
from dare_bench.harness.manifest_yaml import KeyPath
from dare_bench.harness.reporter import Reporter
from dare_bench.harness.resolve_facts import resolve_facts
from dare_bench.harness.resolved import Model


def resolve_model(report: Reporter, path: KeyPath, item: ModelItem) -> Model | None:
    """A model of the manifest: family, source, config and the facts given for it.

    Args:
        report: collects problems.
        path: of the item.
        item: of the manifest.
    """
    known = family_registry.models()
    entry = known.get(item.name)
    own = item.path or item.source
    if item.path and item.source:
        report.add(
            (*path, "source"), "both `path` and `source` are given", given=shorten(item.source), allowed="one of them"
        )
        return None
    if entry is None and own is None:
        report.unknown((*path, "name"), "model", item.name, known)
        return None
    families = family_registry.families()
    if item.family is not None and item.family not in families:
        report.unknown((*path, "family"), "family", item.family, families)
        return None
    if entry is not None and item.family not in (None, entry.family):
        message = f"{item.name} is of the family {entry.family}"
        report.add((*path, "family"), message, given=shorten(item.family), allowed=entry.family)
        return None
    source = str(own or (entry.source if entry else ""))
    if source.startswith(random_entries.PREFIX):
        entry = random_entries.by_source(source)
        if entry is None:
            known = [random_entries.PREFIX + name for name in random_entries.CONFIGS]
            report.unknown((*path, "source"), "random checkpoint", source, known)
            return None
    config: Mapping[str, Any] = entry.config if entry else {}
    revision = item.revision or (entry.revision if entry and not own else None)
    folder = Path(source).expanduser()
    if item.path is not None:
        if not any((folder / name).is_file() for name in ("config.json", places.ADAPTER_CONFIG)):
            report.add(
                (*path, "path"), "no checkpoint there", given=shorten(item.path), allowed="a folder with config.json"
            )
            return None
        try:
            config = places.official_config(folder)  # of an adapter: its base's
        except (places.WeightsNotHere, places.BadCheckpoint, family_registry.UnknownName) as error:
            report.add((*path, "path"), str(error), given=shorten(item.path))
            return None
        source = str(folder.resolve())
    elif item.source is not None and not source.startswith(random_entries.PREFIX):
        config = _config_here(source, revision)
    family = item.family or (entry.family if entry else None)
    if family is None and item.path is not None:
        try:
            family = family_registry.detect(config).name
        except family_registry.UnknownName as error:
            report.add(
                path, "the checkpoint's family is not known", given=shorten(error.name), allowed=", ".join(families)
            )
            return None
    if family is None:
        report.add(
            path, "a hub checkpoint needs its family", given=shorten(source), allowed=f"family: {' | '.join(families)}"
        )
        return None
    if config:
        try:
            family_registry.get_family(family).dims(config)
        except (KeyError, TypeError, ValueError) as error:
            said = f"config.json lacks {error}" if isinstance(error, KeyError) else str(error)
            report.add(path, f"not the config of a {family} network: {said}", given=shorten(source))
            return None
    overrides = resolve_facts(report, path, item, family_registry.get_family(family), config)
    if overrides is None:
        return None
    return Model(item.name, family, source, revision, dict(config), item.dtype, overrides)


def _config_here(source: str, revision: str | None) -> Mapping[str, Any]:
    """Config of a folder or hub id as far as it is on this machine; empty = not known here."""
    try:
        return places.official_config(places.resolve(source, revision))
    except (places.WeightsNotHere, places.BadCheckpoint, family_registry.UnknownName):
        return {}  # what is missing is said when the weights are located
