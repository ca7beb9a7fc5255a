"""Recorded runs of published samplers: what a case.json holds, read and checked. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_bench.dare.conformance.layout import BadReference

LAYOUT = "expected one sub-folder per case with case.json, and the networks that these name"

_KINDS: dict[str, tuple[type, ...]] = {
    "case": (str,), "model": (str,), "source": (dict,), "settings": (dict,), "mask_id": (int,), "eos_id": (int,),
    "prompt_ids": (list,), "gen_length": (int,), "block_length": (int,), "output_ids": (list,), "step_map": (list,),
    "nfe": (int,), "forwards": (list,),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One recorded run.

    Attributes:
        folder: it lies in.
        data: its case.json.
    """

    folder: Path
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        """For tables."""
        return self.folder.name

    @property
    def network(self) -> Path:
        """Folder of the network."""
        return (self.folder / self.data["model"]).resolve()

    @property
    def settings(self) -> Mapping[str, Any]:
        """Arguments of the sampler."""
        return self.data["settings"]

    @property
    def prompts(self) -> list[list[int]]:
        """Prompts without padding."""
        return self.data["prompt_ids"]

    @property
    def sampler(self) -> tuple[str, str]:
        """Repository and file that published it; the file is empty for code that lies with the weights."""
        source = self.data["source"]
        return str(source.get("repo", "")).split(" ")[0], str(source.get("file") or "")

    @property
    def by_grid(self) -> bool:
        """Whether blocks lie on a grid from the first token of the prompt on."""
        return "total_length" in self.data

    @property
    def first_commits(self) -> list[list[int]]:
        """Per row and generated position, the forward that removed the mask."""
        return self.data.get("first_commit_step") or self.data["step_map"]

    def edits(self, row: int) -> list[tuple[int, int, int, int]]:
        """``(forward, generated position, old, new)`` of every rewrite, in order; only single rows were recorded."""
        own = [tuple(edit) for edit in self.data.get("edits") or []]
        prompt = len(self.prompts[row])
        over = [(call, place - prompt, old, new) for call, place, old, new in self.data.get("overwrites") or []]
        return sorted(own + over)

    @property
    def rewrites(self) -> bool:
        """Whether the sampler's own rule goes on with blocks that hold no mask, to edit them."""
        return "editing_threshold" in self.settings

    def blocks(self, row: int) -> list[range]:
        """Generated positions of each block, whole blocks only (the recorded text may end inside the last)."""
        prompt, length = len(self.prompts[row]), self.data["block_length"]
        begin = prompt // length * length - prompt if self.by_grid else 0
        end = len(self.data["output_ids"][row])
        return [range(max(first, 0), first + length) for first in range(begin, end, length)]


def read_cases(root: Path) -> list[Case]:
    """Every case of a folder, by name; sub-folders without case.json hold networks.

    Raises:
        BadReference: no folder, no cases, or a case that is damaged or names a network that is not there.
    """
    if not root.is_dir():
        raise BadReference(f"{root}: no such folder; {LAYOUT}")
    found = [Case(path.parent, _read(path)) for path in sorted(root.glob("*/case.json"))]
    if not found:
        hint = f" This is a case itself: give the folder above it, {root.resolve().parent}."
        raise BadReference(f"{root}: no cases; {LAYOUT}.{hint if (root / 'case.json').is_file() else ''}")
    for case in found:
        _check(case)
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadReference(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(data, dict):
        raise BadReference(f"{path}: expected an object, found {type(data).__name__}")
    return data


def _check(case: Case) -> None:
    """Fields and lengths that the comparison relies on."""
    path, data = case.folder / "case.json", case.data
    for field, kinds in _KINDS.items():
        if field not in data:
            raise BadReference(f"{path}: {field} is missing; expected {', '.join(_KINDS)}")
        if not isinstance(data[field], kinds) or isinstance(data[field], bool):
            shown = " or ".join(kind.__name__ for kind in kinds)
            raise BadReference(f"{path}: {field} is {type(data[field]).__name__}; expected {shown}")
    rows = len(data["prompt_ids"])
    for field in ("output_ids", "step_map"):
        lengths = [len(row) for row in data[field]]
        if lengths != [len(row) for row in data["output_ids"]] or len(lengths) != rows:
            raise BadReference(
                f"{path}: {field} has rows of {lengths} values for {rows} prompts; expected one per token"
            )
    if len(data["forwards"]) != data["nfe"]:
        raise BadReference(f"{path}: {len(data['forwards'])} forwards are listed, nfe is {data['nfe']}")
    last = max((step for row in data["step_map"] for step in row), default=-1)
    if last >= data["nfe"]:
        raise BadReference(f"{path}: step_map names forward {last} of {data['nfe']} (counted from 0)")
    if not (case.network / "config.json").is_file():
        raise BadReference(f"{path}: no network at {case.network}; expected config.json and model.safetensors there")
