"""Environment capture: complete, repeatable, silent about who and where, and without torch."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from dare_bench.results import provenance
from dare_bench.results.keys import fingerprint

IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *IDENTITY, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that tracks a copy of the module, and the module told that it is this copy."""
    folder = tmp_path / "clone" / "results"
    folder.mkdir(parents=True)
    (folder / "provenance.py").write_text("copy")
    git(tmp_path / "clone", "init", "-q")
    git(tmp_path / "clone", "add", ".")
    git(tmp_path / "clone", "commit", "-qm", "first")
    monkeypatch.setattr(provenance, "__file__", str(folder / "provenance.py"))
    return tmp_path / "clone"


def test_the_environment_repeats_and_is_json() -> None:
    first, second = provenance.environment(), provenance.environment()
    assert fingerprint(first) == fingerprint(second)
    assert json.loads(json.dumps(first)) == first
    assert first["packages"]["sqlalchemy"].startswith("2.")
    assert first["python"].endswith(platform.python_version())
    assert first["cpu"]["count"] == os.cpu_count() and first["cpu"]["model"]
    assert set(first["variables"]) == set(provenance.VARIABLES)


def test_it_tells_neither_host_nor_paths() -> None:
    said = json.dumps(provenance.environment())
    for secret in (str(Path.home()) + "/", sys.prefix, os.getcwd()):
        assert secret not in said
    if len(platform.node()) > 8:
        assert platform.node() not in said


def test_it_does_not_import_torch() -> None:
    code = "import sys; from dare_bench.results import provenance as p; p.environment(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_changed_variable_is_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert provenance.environment()["variables"]["OMP_NUM_THREADS"] == "3"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert provenance.environment()["variables"]["OMP_NUM_THREADS"] is None


def test_a_checkout_names_its_commit_and_whether_it_is_dirty(checkout: Path) -> None:
    clean = {"kind": "checkout", "commit": git(checkout, "rev-parse", "HEAD"), "dirty": False}
    assert provenance.source() == clean
    (checkout / "new_algorithm.py").touch()
    assert provenance.source() == {**clean, "dirty": True}
    (checkout / "new_algorithm.py").unlink()
    (checkout / "results" / "provenance.py").write_text("changed")
    assert provenance.source() == {**clean, "dirty": True}


def test_an_install_inside_a_repository_does_not_borrow_its_commit(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / ".gitignore").write_text(".venv/\n")
    installed = checkout / ".venv" / "provenance.py"
    installed.parent.mkdir()
    installed.touch()
    monkeypatch.setattr(provenance, "__file__", str(installed))
    found = provenance.source()
    assert found["kind"] == "install" and found["dirty"] is None
    assert found["commit"] != git(checkout, "rev-parse", "HEAD")


def test_an_install_from_git_names_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "dare_bench-0.1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: dare-bench\nVersion: 0.1.0\n")
    (place / "direct_url.json").write_text(json.dumps({"url": "x", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}))
    ours = ["dare_bench/results/a.py,sha256=x,1", "dare_bench/results/b.py,sha256=y,2"]
    other = ["../bin/dare-bench,sha256=depends-on-place,3", "dare_bench/results/__pycache__/a.pyc,,"]
    (place / "RECORD").write_text("\n".join([ours[1], *other, ours[0]]) + "\n")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    expected = hashlib.sha256("\n".join(ours).encode()).hexdigest()
    assert provenance.source() == {"kind": "install", "commit": "c0ffee", "dirty": None, "record_sha256": expected}


def test_devices_are_read_from_nvidia_smi() -> None:
    listing = "NVIDIA H200, 143771, 570.86.15, 9.0\nNVIDIA GB10, [N/A], 580.1, 12.1\nNo devices were found\n"
    assert provenance.parse_gpus(listing) == [
        {"name": "NVIDIA H200", "memory_mib": 143771, "driver": "570.86.15", "compute_capability": "9.0"},
        {"name": "NVIDIA GB10", "memory_mib": None, "driver": "580.1", "compute_capability": "12.1"},
    ]


def test_a_broken_tool_means_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 570.86.15, 9.0'\nexit $CODE\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CODE", "0")
    assert [one["name"] for one in provenance.gpus()] == ["NVIDIA H200"]
    monkeypatch.setenv("CODE", "9")
    assert provenance.gpus() == []
    tool.unlink()
    assert provenance.gpus() == []


def test_sha256_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc" * 100_000)
    assert provenance.file_sha256(path) == hashlib.sha256(b"abc" * 100_000).hexdigest()
    with pytest.raises(FileNotFoundError):
        provenance.file_sha256(tmp_path / "absent")
