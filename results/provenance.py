"""Where a result was made: source revision, packages, machine. Never the host name, a user name or a path."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

#: Distributions whose version can change a result.
PACKAGES = (
    "dare-bench",
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "peft",
    "trl",
    "datasets",
    "safetensors",
    "lm-eval",
    "math-verify",
    "sympy",
    "numpy",
    "scipy",
    "sqlalchemy",
    "triton",
    "flash-attn",
    "vllm",
)

#: Environment variables that set the number of threads or the visible devices, or ask for determinism.
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TOKENIZERS_PARALLELISM",
)

_SMI_FIELDS = ("name", "memory.total", "driver_version", "compute_cap")
_TIMEOUT_S = 10


def environment() -> dict[str, Any]:
    """Describe the software and the machine, without importing torch.

    Returns:
        JSON dictionary: source (see `source`), packages {name: version}, python, os, cpu (model, logical count, count
        usable by this process), gpus (see `gpus`), variables {name: value, None when unset}.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "source": source(),
        "packages": packages(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "os": {"system": platform.system(), "release": platform.release(), "machine": platform.machine()},
        "cpu": {"model": _cpu_model(), "count": os.cpu_count(), "usable": usable},
        "gpus": gpus(),
        "variables": {name: os.environ.get(name) for name in VARIABLES},
    }


def packages() -> dict[str, str]:
    """Versions of the installed packages that can change a result.

    Returns:
        {distribution name: version}; what is not installed is left out.
    """
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def source() -> dict[str, Any]:
    """Which code runs: the git checkout that tracks this file, else the installed distribution.

    Returns:
        ``{"kind": "checkout", "commit", "dirty"}`` (dirty: any changed or new file that git does not ignore) or
        ``{"kind": "install", "commit", "dirty", "record_sha256"}``: commit as noted by an install from git, else
        None; the hash is that of the list of installed files and their hashes; dirty is None, an install has no
        working tree.
    """
    here = Path(__file__).resolve()
    # A wheel in an environment inside somebody's repository must not report that repository's commit.
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is not None:
        commit = _git(here.parent, "rev-parse", "HEAD")
        if commit is not None:
            root = _git(here.parent, "rev-parse", "--show-toplevel")
            status = _git(Path(root or here.parent), "status", "--porcelain")
            return {"kind": "checkout", "commit": commit, "dirty": None if status is None else bool(status)}
    commit, record = None, None
    try:
        installed = metadata.distribution("dare-bench")
    except metadata.PackageNotFoundError:
        return {"kind": "install", "commit": None, "dirty": None, "record_sha256": None}
    if direct := installed.read_text("direct_url.json"):
        commit = json.loads(direct).get("vcs_info", {}).get("commit_id")
    if listing := installed.read_text("RECORD"):
        # Only our modules and data: the console script's hash depends on where the environment lies.
        ours = [line for line in listing.splitlines() if line.startswith("dare_bench/") and ".pyc," not in line]
        record = hashlib.sha256("\n".join(sorted(ours)).encode()).hexdigest()
    return {"kind": "install", "commit": commit, "dirty": None, "record_sha256": record}


def gpus() -> list[dict[str, Any]]:
    """NVIDIA devices as nvidia-smi names them.

    Returns:
        One {"name", "memory_mib", "driver", "compute_capability"} per device; empty without device or tool.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    listing = _output(query, None)
    return [] if listing is None else parse_gpus(listing)


def parse_gpus(listing: str) -> list[dict[str, Any]]:
    """Read the answer of nvidia-smi.

    Args:
        listing: one line per device: name, total memory in MiB, driver version, compute capability.

    Returns:
        See `gpus`; lines of another form (messages of the tool) are left out.
    """
    found = []
    for line in listing.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != len(_SMI_FIELDS):
            continue
        name, memory, driver, capability = parts
        memory_mib = int(memory) if memory.isdigit() else None
        found.append({"name": name, "memory_mib": memory_mib, "driver": driver, "compute_capability": capability})
    return found


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file's content.

    Args:
        path: file.

    Returns:
        64 hexadecimal digits.

    Raises:
        OSError: the file cannot be read.
    """
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _git(folder: Path, *arguments: str) -> str | None:
    tool = shutil.which("git")
    return None if tool is None else _output([tool, *arguments], folder)


def _output(command: list[str], folder: Path | None) -> str | None:
    """Standard output of a command, None when it failed, hung or could not be started."""
    # GIT_* of an outer git (a hook that runs the harness) would point at another repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
