"""The machine a run uses: devices, memory, processors. Imports no torch: `nvidia-smi` and /proc are asked instead."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dare_bench.harness.errors import UserError


@dataclass(frozen=True)
class Device:
    """A place where jobs run.

    Attributes:
        name: torch device string, ``cpu`` or ``cuda:N``.
        label: what the user calls it, for example ``NVIDIA H200``.
        total_bytes: its memory.
        free_bytes: memory free right now.
    """

    name: str
    label: str
    total_bytes: int
    free_bytes: int

    @property
    def is_cpu(self) -> bool:
        """Whether jobs here compute on the processor."""
        return self.name == "cpu"


def cpu_count() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def cpu_device() -> Device:
    """The processor with the memory of the machine, or of the container when that is less."""
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE))
    total = int(values.get("MemTotal", 0)) * 1024 or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = int(values.get("MemAvailable", 0)) * 1024 or total
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit = _read(limit_file).strip()
        if limit.isdigit() and int(limit) < total:
            total = int(limit)
            free = min(free, max(total - int(_read(used_file).strip() or 0), 0))
    return Device("cpu", f"CPU, {cpu_count()} cores", total, free)


@functools.cache
def gpu_devices() -> tuple[Device, ...]:
    """CUDA devices as `nvidia-smi` reports them, restricted by CUDA_VISIBLE_DEVICES; empty when there are none."""
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", "--query-gpu=index,name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [[part.strip() for part in line.split(",")] for line in answer.splitlines() if line.strip()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        wanted = [part.strip() for part in visible.split(",") if part.strip().isdigit()]
        rows = [row for index in wanted for row in rows if row[0] == index]
    found = []
    for position, (_, name, total, free) in enumerate(rows):
        if total.isdigit() and free.isdigit():
            found.append(Device(f"cuda:{position}", name, int(total) * 2**20, int(free) * 2**20))
    return tuple(found)


def select_devices(option: str) -> list[Device]:
    """The devices of a run.

    Args:
        option: ``auto`` (all GPUs, else the CPU), ``cpu``, ``cuda`` (all GPUs), ``cuda:N`` or ``cuda:N,cuda:M``.

    Raises:
        UserError: a device that is not there.
    """
    gpus = list(gpu_devices())
    if option == "auto":
        return gpus or [cpu_device()]
    if option == "cpu":
        return [cpu_device()]
    known = {device.name: device for device in gpus}
    here = f"Here: {', '.join(['cpu', *known])}."
    if option == "cuda":
        if not gpus:
            raise UserError(f"--device cuda: no CUDA device found (`nvidia-smi` lists none). {here}")
        return gpus
    names = [part.strip() for part in option.split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"--device {option}: no device {name!r}. Allowed: auto, cpu, cuda, cuda:N. {here}")
    return [known[name] for name in dict.fromkeys(names)]


def _read(path: str) -> str:
    file = Path(path)
    return file.read_text() if file.is_file() else ""
