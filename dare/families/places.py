"""Where a checkpoint is: shipped folders, local folders, the hub cache; its config and weight files. Imports no torch."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from dare_bench.dare.families.registry import UnknownName, models

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER = "adapter_model.safetensors"


class WeightsNotHere(FileNotFoundError):
    """The weights are neither in a local folder nor in the hub cache; the message says how to get them."""


class BadCheckpoint(ValueError):
    """Files of a checkpoint are missing, damaged, or hold other parameters than the family's."""


def package_folder(name: str) -> Path:
    """Folder of a checkpoint shipped in the package."""
    return Path(str(files("dare_bench.dare"))) / "tiny" / name


def is_local(source: str) -> bool:
    """Whether a source is a folder rather than a hub id (``owner/name``)."""
    return source.startswith((".", "/", "~")) or source.count("/") != 1 or Path(source).is_dir()


def hub_snapshot(hub_id: str, revision: str | None) -> Path | None:
    """Snapshot folder of a hub id in the local hub cache, complete with all shards; never asks the network.

    Args:
        hub_id: ``owner/name``.
        revision: commit, branch or tag; null = ``main`` as it was last downloaded.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for name in ("config.json", ADAPTER_CONFIG):
        try:
            found = try_to_load_from_cache(hub_id, name, revision=revision)
        except HFValidationError:
            raise WeightsNotHere(f"{hub_id!r} is neither a folder nor a hub id (owner/name)") from None
        if isinstance(found, str):
            folder = Path(found).parent
            return folder if is_complete(folder) else None
    return None


def is_complete(folder: Path) -> bool:
    """Whether all weight files of a folder are there."""
    index = folder / INDEX
    if index.is_file():
        return all((folder / name).is_file() for name in _indexed(index))
    return (folder / SINGLE).is_file() or (folder / ADAPTER).is_file()


def download_hint(hub_id: str, revision: str | None) -> str:
    """The command that fetches a hub checkpoint."""
    return f"hf download {hub_id}" + (f" --revision {revision}" if revision else "")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds a LoRA adapter rather than a whole checkpoint.

    Raises:
        BadCheckpoint: if it holds both.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        return False
    whole = [name for name in (SINGLE, INDEX) if (folder / name).is_file()]
    if whole and (folder / ADAPTER).is_file():
        raise BadCheckpoint(f"{folder}: holds both {whole[0]} and {ADAPTER}; put the adapter in a folder of its own")
    return not whole


def adapter_base(folder: Path) -> tuple[str, str | None]:
    """What an adapter folder says its base is.

    Returns:
        (registry name, folder or hub id; hub revision or null).

    Raises:
        BadCheckpoint: if adapter_config.json is not readable or names no base.
    """
    described = read_object(folder / ADAPTER_CONFIG)
    base, revision = described.get("base_model_name_or_path"), described.get("revision")
    if not isinstance(base, str) or not base:
        raise BadCheckpoint(
            f"{folder / ADAPTER_CONFIG}: base_model_name_or_path is {base!r}; write the base's folder, hub id or registry "
            "name there"
        )
    return base, revision if isinstance(revision, str) else None


def official_config(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint folder, or of the base of an adapter folder.

    Raises:
        WeightsNotHere, BadCheckpoint: see `resolve` and `read_config`.
    """
    seen: list[Path] = []
    while is_adapter(folder):
        if folder.resolve() in seen:
            raise BadCheckpoint(f"{folder / ADAPTER_CONFIG}: the adapter is its own base; name a checkpoint there")
        seen.append(folder.resolve())
        folder = resolve(*adapter_base(folder))
    return read_config(folder)


def portable(source: str) -> tuple[str, str | None]:
    """How another machine finds a checkpoint: hub id and commit of a folder of the hub cache, else the source itself."""
    entry = models().get(source)
    if entry is not None and not entry.source.startswith("package:"):
        source = str(hub_snapshot(entry.source, entry.revision) or source)
    folder = Path(source).expanduser()
    kept = folder.parent.parent.name.split("--")
    if folder.parent.name != "snapshots" or len(kept) != 3 or kept[0] != "models":
        return source, None
    hub_id = "/".join(kept[1:])
    return (hub_id, folder.name) if hub_snapshot(hub_id, folder.name) == folder else (source, None)


def resolve(source: str, revision: str | None = None) -> Path:
    """Find a checkpoint's folder on this machine; nothing is downloaded.

    Args:
        source: a name of `registry.models()`, ``package:<name>``, a folder, or a hub id.
        revision: hub commit; default the registry's pin.

    Raises:
        WeightsNotHere: with the hub id, where was looked, and the command that fetches it.
        BadCheckpoint: for a folder that holds no checkpoint.
    """
    entry = models().get(source)
    if entry is not None:
        source, revision = entry.source, revision or entry.revision
    is_shipped = source.startswith("package:")
    folder = package_folder(source.removeprefix("package:")) if is_shipped else Path(source).expanduser()
    if (folder / "config.json").is_file() or (folder / ADAPTER_CONFIG).is_file():
        return folder
    if is_shipped:
        raise WeightsNotHere(f"the shipped model {source.removeprefix('package:')!r} is missing from this installation")
    if folder.is_dir():
        raise BadCheckpoint(f"{folder}: no config.json in this folder; a checkpoint is config.json + *.safetensors")
    if source.startswith(("/", ".", "~")) or source.count("/") > 1:
        raise WeightsNotHere(f"{folder}: no such folder; give a folder with config.json + *.safetensors, or a hub id")
    if "/" not in source:  # more likely a misspelt registry name than a hub id without an owner
        raise UnknownName("model", source, list(models()))
    found = hub_snapshot(source, revision)
    if found is None:
        raise WeightsNotHere(
            f"the weights of {source} are not on this machine (no folder of that name, not in the hub cache). "
            f"Fetch them with `{download_hint(source, revision)}`, or give a local folder: {{family: ..., path: DIR}}"
        )
    return found


def read_config(folder: Path) -> dict[str, Any]:
    """Parse config.json as plain JSON (its `model_type` is unknown to transformers).

    Raises:
        BadCheckpoint: if it is missing or no JSON object, or does not say its type in the usual way.
    """
    config = read_object(folder / "config.json")
    kind, classes = config.get("model_type"), config.get("architectures")
    if kind is not None and not isinstance(kind, str):
        raise BadCheckpoint(f"{folder / 'config.json'}: model_type is {kind!r}, expected a text")
    if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise BadCheckpoint(f"{folder / 'config.json'}: architectures is {classes!r}, expected a list of class names")
    return config


def read_object(path: Path) -> dict[str, Any]:
    """Parse a JSON file that holds an object.

    Raises:
        BadCheckpoint: if it does not.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(value, dict):
        raise BadCheckpoint(f"{path}: expected an object, found {type(value).__name__}")
    return value


def shards(folder: Path) -> list[Path]:
    """Weight files of a checkpoint, from its index or the single file.

    Raises:
        BadCheckpoint: if there are none, one is missing, or only pickled weights are there.
    """
    names = _indexed(folder / INDEX) if (folder / INDEX).is_file() else {SINGLE}
    paths = [folder / name for name in sorted(names)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        hint = (
            f" Pickled weights ({', '.join(pickled)}) are never read: convert them to safetensors." if pickled else ""
        )
        raise BadCheckpoint(f"{folder}: missing weight file(s) {', '.join(missing)}.{hint or ' Fetch them again.'}")
    return paths


def _indexed(index: Path) -> set[str]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(
            f"{index}: not a weight index, expected {{weight_map: {{name: file}}}} ({error!r})"
        ) from error
    if not names or not all(isinstance(name, str) for name in names):
        raise BadCheckpoint(f"{index}: not a weight index, expected {{weight_map: {{name: file}}}} with file names")
    strange = sorted(name for name in names if not name or Path(name).name != name or name == "..")
    if strange:
        raise BadCheckpoint(
            f"{index}: names {strange[0]!r}; weight files lie beside their index, in the same folder: fetch it again"
        )
    return names
