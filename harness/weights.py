"""What identifies a checkpoint's weights, and whether they are here. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_bench.dare.families import places, random_entries, registry

#: Files of a checkpoint folder that decide what it computes.
_PARTS = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
#: Digests of larger files are remembered by (size, modification time).
_REMEMBER_ABOVE = 64 * 2**20


@dataclass(frozen=True)
class Weights:
    """A located checkpoint.

    Attributes:
        folder: where it is, or null.
        identity: what enters fingerprints: content digests, or hub id and revision.
        missing: why it cannot be loaded and how to get it; null when it is here.
    """

    folder: Path | None
    identity: dict[str, Any]
    missing: str | None = None


def locate(name: str, source: str, revision: str | None, cache_file: Path | None = None) -> Weights:
    """Find a checkpoint.

    Args:
        name: the model's name, for messages.
        source: ``package:<name>``, ``random:<family>``, a local folder, or a hub id.
        revision: hub commit, or null.
        cache_file: JSON file that remembers digests of large local files; null = always read them.

    Returns:
        The location and identity; `missing` says what to do when the weights are not here. A random checkpoint has no
        folder until a worker makes it.
    """
    if source.startswith(random_entries.PREFIX):
        return Weights(None, random_entries.identity(source))
    if source.startswith("package:"):
        folder = places.package_folder(source.removeprefix("package:"))
        if not (folder / places.SINGLE).is_file():
            said = f"{name}: the shipped weights are not in {folder}; reinstall dare-bench"
            return Weights(None, {"package": source}, said)
        return Weights(folder, {"sha256": folder_digest(folder, cache_file)})
    if places.is_local(source):
        folder = Path(source).expanduser()
        if not folder.is_dir():
            return Weights(None, {"path": source}, f"{name}: no folder {source}")
        return _in_folder(name, folder, {"path": source}, cache_file)
    try:
        found = places.hub_snapshot(source, revision)
    except (places.WeightsNotHere, places.BadCheckpoint) as error:
        return Weights(None, {"hub": source, "revision": revision}, f"{name}: {error}")
    commit = found.name if found else revision
    identity = {"hub": source, "revision": commit}
    if found is None:
        pin = f", revision {revision}" if revision else ""
        said = (
            f"{name}: the weights are not on this machine (hub id {source}{pin}). "
            f"Get them with `{places.download_hint(source, revision)}`, or give their folder in the manifest: "
            f"models: [{{name: {name}, path: FOLDER}}]"
        )
        return Weights(None, identity, said)
    return _adapter(name, found, identity, cache_file) if places.is_adapter(found) else Weights(found, identity)


def _in_folder(name: str, folder: Path, place: dict[str, Any], cache_file: Path | None) -> Weights:
    try:
        if places.is_adapter(folder):
            return _adapter(name, folder, place, cache_file)
        if not (folder / "config.json").is_file():
            return Weights(None, place, f"{name}: {folder} holds no config.json with *.safetensors")
        places.shards(folder)
    except places.BadCheckpoint as error:
        return Weights(None, place, f"{name}: {error}")
    return Weights(folder, {"sha256": folder_digest(folder, cache_file)})


def _adapter(name: str, folder: Path, place: dict[str, Any], cache_file: Path | None) -> Weights:
    """An adapter is identified by its own files and by its base, wherever that lies here."""
    try:
        places.official_config(folder)
        base, revision = places.adapter_base(folder)
    except (places.WeightsNotHere, places.BadCheckpoint, registry.UnknownName) as error:
        return Weights(None, place, f"{name}: {folder} is an adapter, and its base cannot be read: {error}")
    if not (folder / places.ADAPTER).is_file():
        return Weights(None, place, f"{name}: {folder} holds {places.ADAPTER_CONFIG} but no {places.ADAPTER}")
    entry = registry.models().get(base)
    if entry is not None:
        base, revision = entry.source, revision or entry.revision
    under = locate(name, base, revision, cache_file)
    if under.missing:
        return Weights(None, place, under.missing)
    return Weights(folder, {"sha256": folder_digest(folder, cache_file), "base": under.identity})


def stay_offline() -> None:
    """Make the hub client of this process read its local cache only (`plan` fetches nothing)."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:  # it read the variable when it was imported
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def folder_digest(folder: Path, cache_file: Path | None = None) -> str:
    """One digest over the files that decide what a checkpoint computes (names and contents).

    Args:
        folder: checkpoint folder.
        cache_file: see `locate`.
    """
    files = sorted(folder.glob("*.safetensors")) + [folder / part for part in _PARTS if (folder / part).is_file()]
    known: dict[str, str] = {}
    if cache_file is not None and cache_file.is_file():
        known = json.loads(cache_file.read_text(encoding="utf-8"))
    digests, learned = {}, {}
    for file in files:
        stat = file.stat()
        key = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
        digests[file.name] = known.get(key) or _digest(file)
        if stat.st_size > _REMEMBER_ABOVE:
            learned[key] = digests[file.name]
    if places.is_adapter(folder):
        digests[places.ADAPTER_CONFIG] = _settings_digest(folder / places.ADAPTER_CONFIG)
    if cache_file is not None and learned.keys() - known.keys():
        write_json(cache_file, known | learned)
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write beside and rename, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(value, indent=1, sort_keys=True), encoding="utf-8")
    beside.replace(path)


def _settings_digest(file: Path) -> str:
    """Digest of an adapter's settings without the place of its base, which differs between machines."""
    settings = json.loads(file.read_text(encoding="utf-8"))
    for place in ("base_model_name_or_path", "revision"):
        settings.pop(place, None)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
