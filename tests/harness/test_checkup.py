"""What `dare-bench doctor` says about the sandbox."""

from __future__ import annotations

import importlib
import subprocess
import sys

from dare_bench.harness import checkup
from dare_bench.suites.sandbox import Isolation


def said(monkeypatch, *usable: str) -> str:
    module = importlib.import_module("dare_bench.suites.sandbox.probe")
    package = importlib.import_module("dare_bench.suites.sandbox")

    def fake(level: str, python: str | None = None) -> Isolation:
        works = level in usable
        return Isolation(level, works, "Python P" if works else f"{level} is not installed")

    monkeypatch.setattr(module, "probe", fake)
    monkeypatch.setattr(package, "probe", fake)
    is_good, text = checkup._sandbox()
    assert is_good
    return text


def test_the_level_is_told_with_why_no_stronger_one_works(monkeypatch):
    assert said(monkeypatch, "bwrap", "unshare", "none") == "isolation bwrap, Python P"
    assert said(monkeypatch, "unshare", "none") == "isolation unshare, Python P; bwrap: bwrap is not installed"


def test_without_isolation_the_next_step_is_told(monkeypatch):
    assert "model-written code is refused; install bubblewrap; bwrap: bwrap is not" in said(monkeypatch, "none")


def test_this_machine_is_asked_without_torch():
    code = (
        "import sys\nfrom dare_bench.harness.checkup import _sandbox\n"
        "print(_sandbox()[1])\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("isolation ")
