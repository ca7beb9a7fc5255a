"""Checks of the machine for `dare-bench doctor`. Imports no torch: torch is asked in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dare_bench.harness.environment import cpu_device, gpu_devices
from dare_bench.harness.memory import GIB
from packaging.requirements import Requirement

_KERNELS = """
import torch
from dare_bench.kernels.dispatch import report
gpu = torch.cuda.is_available()
for choice in report("cuda" if gpu else "cpu", torch.bfloat16 if gpu else torch.float32):
    print(f"{choice.operation}: {choice.path} ({choice.reason})")
"""

#: Free disk space below which a run is likely to fail.
MIN_FREE_BYTES = 2 * GIB

_TORCH = (
    "import torch; print(f'torch {torch.__version__}, CUDA build {torch.version.cuda}, '"
    "f'{torch.cuda.device_count()} usable GPUs, {torch.get_num_threads()} threads')"
)


@dataclass(frozen=True)
class Check:
    """One result."""

    name: str
    is_good: bool
    text: str


def checks(db: str, runs: Path) -> Iterator[Check]:
    """All checks, one after the other.

    Args:
        db: database URL.
        runs: runs folder.
    """
    yield Check("python", sys.version_info >= (3, 11), sys.version.split()[0])
    for name, check in (
        ("packages", _packages),
        ("torch", _torch),
        ("kernels", _kernels),
        ("devices", _devices),
        ("weights", _weights),
        ("data", _data),
        ("sandbox", _sandbox),
    ):
        yield _guarded(name, check)
    yield _guarded("runs folder", lambda: _runs(runs))
    yield _guarded("database", lambda: _database(db))


def _guarded(name: str, check: Callable[[], tuple[bool, str]]) -> Check:
    try:
        is_good, text = check()
    except Exception as error:  # whatever is broken here is what this command is for
        return Check(name, False, f"{type(error).__name__}: {error}")
    return Check(name, is_good, text)


def _packages() -> tuple[bool, str]:
    wrong, count = [], 0
    for line in metadata.requires("dare-bench") or []:
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        count += 1
        try:
            version = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{needed.name} is not installed")
            continue
        if not needed.specifier.contains(version, prereleases=True):
            wrong.append(f"{needed.name} is {version}, needed {needed.specifier}")
    return not wrong, "; ".join(
        wrong
    ) or f"{count} required packages in range, dare-bench {metadata.version('dare-bench')}"


def _torch() -> tuple[bool, str]:
    done = subprocess.run([sys.executable, "-c", _TORCH], capture_output=True, text=True, timeout=120, check=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else f"exit code {done.returncode}"


def _kernels() -> tuple[bool, str]:
    """What would run on the best device, and why; asked in a process of its own, as torch stays out of this one."""
    done = subprocess.run([sys.executable, "-c", _KERNELS], capture_output=True, text=True, timeout=120, check=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return done.returncode == 0, "; ".join(lines) if done.returncode == 0 else lines[-1]


def _devices() -> tuple[bool, str]:
    return True, "; ".join(
        f"{device.name} {device.label}: {device.total_bytes / GIB:.1f} GiB, {device.free_bytes / GIB:.1f} free"
        for device in (cpu_device(), *gpu_devices())
    )


def _weights() -> tuple[bool, str]:
    from dare_bench.dare.families.registry import models
    from dare_bench.harness.weights import locate

    here, gone = [], []
    for entry in models().values():
        found = locate(entry.name, entry.source, entry.revision)
        if not found.missing:
            here.append(entry.name)
        elif entry.source.startswith("package:"):
            gone.append(entry.name)
    said = f"here: {', '.join(here) or 'none'}"
    return not gone, said + (f"; shipped models missing: {', '.join(gone)}" if gone else "")


def _data() -> tuple[bool, str]:
    from dare_bench.suites.benchmarks import registry

    count = 0
    names = [name for name in registry.names() if name.startswith("mini_")]
    for name in names:
        bench = registry.get(name)
        count += sum(len(bench.rows(split)) for split in bench.splits)
    return bool(names), f"{', '.join(names)}: {count:,} rows, checksums verified"


def _sandbox() -> tuple[bool, str]:
    """The isolation of model-written code. Without any, code benchmarks are refused and everything else works."""
    from dare_bench.suites.sandbox import LEVELS, best, probe

    found = best()
    stronger = LEVELS[: LEVELS.index(found.level)]
    said = [f"isolation {found.level}, {found.detail}"]
    if found.level == "none":
        said = ["isolation none: model-written code is refused; install bubblewrap"]
    return True, "; ".join([*said, *(f"{level}: {probe(level).detail}" for level in stronger)])


def _runs(runs: Path) -> tuple[bool, str]:
    place = runs if runs.is_dir() else next(parent for parent in runs.absolute().parents if parent.is_dir())
    stat = os.statvfs(place)
    free = stat.f_bavail * stat.f_frsize
    if not os.access(place, os.W_OK):
        return False, f"{place} is not writable"
    return free >= MIN_FREE_BYTES, f"{runs}: writable, {free / GIB:.1f} GiB free"


def _database(db: str) -> tuple[bool, str]:
    from dare_bench.harness.prepare import open_store
    from dare_bench.results.queries import suites

    store = open_store(db, create=False)
    if store is None:
        return True, f"{db}: not there yet, made by the first run"
    with store:
        found = suites(store)
    return True, f"{db}: {', '.join(f'{view.suite} ({view.status})' for view in found) or 'no suites'}"
