"""The run lock: exclusive, named holder, freed by the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dare_bench.harness.errors import LockHeld
from dare_bench.harness.lock import engine_lock, run_lock

HOLD = """
import sys, time
from pathlib import Path
from dare_bench.harness.lock import run_lock
with run_lock(Path(sys.argv[1]), sys.argv[2], "the other command"):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(runs: Path, db: str) -> subprocess.Popen[str]:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(runs), db], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    return holder


def test_a_second_run_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    holder = hold(tmp_path, f"sqlite:///{tmp_path}/x.db")
    try:
        with (
            pytest.raises(LockHeld, match=rf"process {holder.pid} since .* \(the other command\).*another --runs"),
            run_lock(tmp_path, "postgresql://h/x", "mine"),
        ):
            raise AssertionError("entered")
    finally:
        holder.kill()
        holder.wait()


def test_kill_frees_the_lock(tmp_path: Path) -> None:
    holder = hold(tmp_path, "postgresql://h/x")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with run_lock(tmp_path, "postgresql://h/x", "mine") as descriptors:
        assert len(descriptors) == 1
    with run_lock(tmp_path, "postgresql://h/x", "again"):
        assert "again" in (tmp_path / "run.lock").read_text()
    assert (tmp_path / "run.lock").read_text() == ""


def test_one_database_in_two_runs_folders_is_locked_too(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/shared.db"
    holder = hold(tmp_path / "a", db)
    try:
        with pytest.raises(LockHeld, match=r"shared\.db\.lock"), run_lock(tmp_path / "b", db, "mine"):
            raise AssertionError("entered")
    finally:
        holder.kill()
        holder.wait()


def test_a_server_serves_one_training_job_at_a_time(tmp_path: Path) -> None:
    waited: list[str] = []

    class Waits(Exception):
        """Ends the wait."""

    def wait() -> None:
        waited.append("second")
        raise Waits

    with engine_lock(tmp_path, "http://host:30000", lambda: waited.append("first")):
        with engine_lock(tmp_path, "http://host:30001", lambda: waited.append("other")):
            pass
        with pytest.raises(Waits), engine_lock(tmp_path, "http://host:30000/v1/", wait):
            raise AssertionError("entered")
    with engine_lock(tmp_path, "http://host:30000", lambda: waited.append("third")):
        pass
    assert waited == ["second"]
