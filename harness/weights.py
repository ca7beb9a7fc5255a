"""Where a checkpoint's weights are, and what identifies them. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

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


def package_folder(name: str) -> Path:
    """Folder of a checkpoint shipped in the package."""
    return Path(str(resources.files("dare_bench.dare"))) / "tiny" / name


def locate(name: str, source: str, revision: str | None, cache_file: Path | None = None) -> Weights:
    """Find a checkpoint.

    Args:
        name: the model's name, for messages.
        source: ``package:<name>``, a local folder, or a hub id.
        revision: hub commit, or null.
        cache_file: JSON file that remembers digests of large local files; null = always read them.

    Returns:
        The location and identity; `missing` says what to do when the weights are not here.
    """
    if source.startswith("package:"):
        folder = package_folder(source.removeprefix("package:"))
        if not (folder / "model.safetensors").is_file():
            said = f"{name}: the shipped weights are not in {folder}; reinstall dare-bench"
            return Weights(None, {"package": source}, said)
        return Weights(folder, {"sha256": folder_digest(folder, cache_file)})
    if is_local(source):
        folder = Path(source).expanduser()
        if not folder.is_dir():
            return Weights(None, {"path": source}, f"{name}: no folder {source}")
        if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
            return Weights(None, {"path": source}, f"{name}: {source} holds no config.json with *.safetensors")
        return Weights(folder, {"sha256": folder_digest(folder, cache_file)})
    folder = _hub_snapshot(source, revision)
    commit = folder.name if folder else revision
    identity = {"hub": source, "revision": commit}
    if folder is None:
        pin = f", revision {revision}" if revision else ""
        at = f" --revision {revision}" if revision else ""
        said = (
            f"{name}: the weights are not on this machine (hub id {source}{pin}). "
            f"Get them with `hf download {source}{at}`, or give their folder in the manifest: "
            f"models: [{{name: {name}, path: FOLDER}}]"
        )
        return Weights(None, identity, said)
    return Weights(folder, identity)


def stay_offline() -> None:
    """Make the hub client of this process read its local cache only (`plan` fetches nothing)."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:  # it read the variable when it was imported
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def is_local(source: str) -> bool:
    """Whether a source is a folder rather than a hub id (``owner/name``)."""
    return source.startswith((".", "/", "~")) or source.count("/") != 1 or Path(source).is_dir()


def read_config(folder: Path) -> dict[str, Any]:
    """The official config of a checkpoint folder."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


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
    if cache_file is not None and learned.keys() - known.keys():
        write_json(cache_file, known | learned)
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write beside and rename, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(value, indent=1, sort_keys=True), encoding="utf-8")
    beside.replace(path)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hub_snapshot(hub_id: str, revision: str | None) -> Path | None:
    """Snapshot folder of a hub id in the local hub cache, complete with all shards; never asks the network."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(hub_id, "config.json", revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return folder if all((folder / shard).is_file() for shard in shards) else None
    return folder if list(folder.glob("*.safetensors")) else None
