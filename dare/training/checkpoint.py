"""Resumable training state and finished checkpoints: safetensors + JSON, written beside and renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dare_bench.dare.training import optim
from dare_bench.dare.training.world import fill, whole
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer

STATE = "state"
FINISHED = "finished.json"


def publish(temporary: Path, final: Path) -> None:
    """Move a complete folder into place; a reader sees the old one, the new one, or none, never a half."""
    for path in temporary.rglob("*"):
        if path.is_file():
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
    if final.exists():
        shutil.rmtree(final)
    os.replace(temporary, final)


def scratch(final: Path) -> Path:
    """An empty folder beside `final`, for this process."""
    temporary = final.parent / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    return temporary


def save_state(
    out_dir: Path,
    step: int,
    model: nn.Module,
    optimizers: Mapping[str, Optimizer],
    totals: Mapping[str, Any],
    *,
    leads: bool = True,
) -> Path:
    """Write everything a continuation needs after `step` optimiser steps, then drop older states.

    Draws and data order are functions of (seed, step): no generator state is stored. Of several processes one leads and
    writes; all call, because sharded weights are gathered.
    """
    final = out_dir / STATE / f"step-{step:08d}"
    weights = {name: whole(each.detach()).cpu().contiguous() for name, each in optim.trainable(model).items()}
    states = optim.state_tensors(dict(optimizers))
    if not leads:
        return final
    temporary = scratch(final)
    save_file(weights, temporary / "weights.safetensors")
    save_file(states, temporary / "optimizer.safetensors")
    (temporary / "state.json").write_text(json.dumps({"step": step, "totals": dict(totals)}, sort_keys=True), "utf-8")
    publish(temporary, final)
    for old in (out_dir / STATE).iterdir():
        if old != final:
            shutil.rmtree(old, ignore_errors=True)
    return final


def latest_state(out_dir: Path) -> Path | None:
    """The newest complete state of a run, or None."""
    found = sorted(path for path in (out_dir / STATE).glob("step-*") if (path / "state.json").is_file())
    return found[-1] if found else None


def load_state(folder: Path, model: nn.Module, optimizers: dict[str, Optimizer]) -> tuple[int, dict[str, Any]]:
    """Restore weights and optimisers.

    Returns:
        (steps done, totals so far).

    Raises:
        ValueError: if the state belongs to another model.
    """
    weights = load_file(folder / "weights.safetensors")
    own = optim.trainable(model)
    if set(weights) != set(own):
        raise ValueError(f"{folder}: state of {len(weights)} tensors, the model trains {len(own)}; delete the folder")
    for name, tensor in weights.items():
        fill(own[name].data, tensor)
    optim.load_state_tensors(optimizers, load_file(folder / "optimizer.safetensors"))
    described = json.loads((folder / "state.json").read_text("utf-8"))
    return int(described["step"]), dict(described["totals"])


def finish(out_dir: Path, record: Mapping[str, Any]) -> None:
    """Note that `final/` is complete, then drop the resumable states.

    Args:
        out_dir: folder of the run.
        record: step of the checkpoint, last step of the run, sha256 and totals.
    """
    temporary = out_dir / f".{FINISHED}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(dict(record), sort_keys=True), "utf-8")
    os.replace(temporary, out_dir / FINISHED)
    shutil.rmtree(out_dir / STATE, ignore_errors=True)


def finished(out_dir: Path, step: int) -> dict[str, Any] | None:
    """What `finish` noted, if the run went on until `step` and its checkpoint is still there."""
    path = out_dir / FINISHED
    if not path.is_file() or not (out_dir / "final").is_dir():
        return None
    record = json.loads(path.read_text("utf-8"))
    return record if record.get("stop", record["step"]) == step else None


def folder_sha256(folder: Path) -> str:
    """Content hash of a checkpoint: file names and bytes, in order."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
