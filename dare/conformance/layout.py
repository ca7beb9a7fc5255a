"""Folders of recorded values: which files they hold, and what is wrong with one that does not. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILES = ("config.json", "model.safetensors", "inputs.safetensors", "expected.safetensors", "meta.json")
LAYOUT = f"expected one sub-folder per model, each with {', '.join(FILES)}"

FIXTURES = "expected files <name>.json, <name>.safetensors or both, with recorded values of algorithms"


class BadReference(ValueError):
    """A folder of recorded values is not what it should be; the message says what is expected."""


def model_folders(root: Path) -> list[Path]:
    """Sub-folders of recorded values, by name. A hidden folder is none; every other one must be complete.

    Args:
        root: folder of folders.

    Raises:
        BadReference: no folder, no sub-folders, or missing files.
    """
    if not root.is_dir():
        raise BadReference(f"{root}: no such folder; {LAYOUT}")
    found = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        is_one = all((root / name).is_file() for name in FILES)
        hint = (
            f" This is such a sub-folder itself: give the folder above it, {root.resolve().parent}." if is_one else ""
        )
        raise BadReference(f"{root}: no sub-folders; {LAYOUT}.{hint}")
    for folder in found:
        missing = [name for name in FILES if not (folder / name).is_file()]
        if missing:
            raise BadReference(f"{folder}: missing {', '.join(missing)}; {LAYOUT}")
    return found


def fixture_files(root: Path) -> dict[str, list[Path]]:
    """Files of recorded values by stem, in the order of their names; hidden files and Markdown are none.

    Args:
        root: folder of files.

    Raises:
        BadReference: no folder, no such files, or one of another kind.
    """
    if not root.is_dir():
        raise BadReference(f"{root}: no such folder; {FIXTURES}")
    found: dict[str, list[Path]] = {}
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or path.suffix == ".md":
            continue
        if not path.is_file() or path.suffix not in (".json", ".safetensors"):
            raise BadReference(
                f"{path}: neither a .json nor a .safetensors file; {FIXTURES}. Give a folder of these alone"
            )
        found.setdefault(path.stem, []).append(path)
    if not found:
        raise BadReference(f"{root}: holds no recorded values; {FIXTURES}")
    return found


def read_meta(folder: Path) -> dict[str, Any]:
    """The object in meta.json.

    Raises:
        BadReference: not a JSON object, or a field of the wrong kind.
    """
    path = folder / "meta.json"
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadReference(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(meta, dict):
        raise BadReference(f"{path}: expected an object, found {type(meta).__name__}")
    length = meta.get("block_length")
    if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 1):
        raise BadReference(f"{path}: block_length is {length!r}; expected a number of tokens, or leave it out")
    return meta
