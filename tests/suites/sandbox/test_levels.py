"""Levels of isolation: what is started, what is tried, what is refused."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dare_bench.suites.errors import DataError, SuiteError, UnknownNameError
from dare_bench.suites.sandbox import (
    LEVELS,
    Isolation,
    Limits,
    Program,
    Sandbox,
    SandboxError,
    best,
    levels,
    probe,
    users,
)
from dare_bench.suites.sandbox import probe as _probe_function
from dare_bench.suites.sandbox.judge import Place, judge

ROOT = Path(__file__).resolve().parents[3]
RIGHT = Program("def add(x, y):\n    return x + y\n", ["assert add(1, 2) == 3"], "add")
FOREVER = Program("def add(x, y):\n    while True: pass\n", ["assert add(1, 2) == 3"], "add", 0.8)


@pytest.fixture
def without(monkeypatch):
    """Makes levels unusable."""
    import importlib

    module = importlib.import_module("dare_bench.suites.sandbox.probe")

    def gone(*names: str) -> None:
        def fake(level: str, python: str | None = None) -> Isolation:
            if level in names:
                return Isolation(level, False, f"{level} is not installed")
            return _probe_function(level, python)

        monkeypatch.setattr(module, "probe", fake)

    return gone


def test_the_strongest_level_that_works_is_taken(without):
    usable = [level for level in LEVELS if probe(level).is_usable]
    assert best().level == usable[0]
    without(usable[0])
    assert best().level == ("none" if len(usable) < 3 else usable[1])


def test_without_isolation_programs_are_refused_unless_allowed(without):
    without("bwrap", "unshare", "docker")
    with pytest.raises(SandboxError, match=r"bwrap is not installed.*install bubblewrap.*allow_unsafe=True"):
        Sandbox()
    with pytest.raises(SandboxError, match="'none' is no isolation"):
        Sandbox("none")
    with Sandbox(workers=1, allow_unsafe=True) as sandbox:
        assert sandbox.isolation == "none"
        outcomes = sandbox.run([RIGHT, FOREVER])
    assert [(outcome.status, outcome.isolation) for outcome in outcomes] == [("passed", "none"), ("timeout", "none")]


def test_a_level_that_does_not_work_is_refused(without):
    without("bwrap")
    with pytest.raises(SandboxError, match="'bwrap' does not work here: bwrap is not installed"):
        Sandbox("bwrap")


def test_wrong_values_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'bwrap'"):
        Sandbox("bwrp")
    with pytest.raises(SuiteError, match="workers: 0"):
        Sandbox(workers=0)
    with pytest.raises(SuiteError, match="timeout: 0"):
        Program("", [], "f", 0)
    with pytest.raises(SuiteError, match="entry_point"):
        Program("", [], "f(x)")


def test_a_sandbox_that_does_not_start_is_an_error_and_no_verdict(sandbox):
    place = Place("bwrap", str(Path(os.sep, "usr", "bin", "no-such-python")), tries=2)
    with pytest.raises(SandboxError, match=r"does not start: .*no-such-python"):
        judge(place, RIGHT, None, threading.Event())
    with pytest.raises(SandboxError, match="does not work here"):
        Sandbox(python=str(Path(os.sep, "usr", "bin", "false")), level="bwrap")


def test_tests_that_do_not_parse_are_an_error_of_the_data(sandbox):
    with pytest.raises(DataError, match="does not parse"):
        sandbox.run([dataclasses.replace(RIGHT, tests=["assert add("])])
    with pytest.raises(DataError, match="no tests"):
        sandbox.run([dataclasses.replace(RIGHT, tests=[])])
    assert sandbox.run([]) == []


UNSHARED = """
import os
def add(x, y):
    import socket
    try:
        open(MARK, "w").close()
    except OSError:
        return "no folder of its own"
    return [name for _, name in socket.if_nameindex()], os.getppid(), os.listdir("/tmp")
"""


def test_unshare_keeps_network_processes_and_shared_folders_apart():
    found = probe("unshare")
    if not found.is_usable:
        pytest.skip(f"unshare does not work here: {found.detail}")
    mark = Path(os.sep, "tmp", "dare-bench-unshare-mark")
    with Sandbox("unshare", workers=2) as sandbox:
        look = Program(
            f"MARK = {str(mark)!r}\n" + UNSHARED, [f"assert add(1, 2) == (['lo'], 1, [{mark.name!r}])"], "add"
        )
        outcomes = sandbox.run([look, FOREVER, RIGHT])
    assert [outcome.status for outcome in outcomes] == ["passed", "timeout", "passed"], outcomes
    assert {outcome.isolation for outcome in outcomes} == {"unshare"}
    assert not mark.exists()


AS_USER = """
import sys
from dare_bench.suites.sandbox import Program, Sandbox, best
bomb = '''
def add(x, y):
    import os, time
    count = 0
    try:
        while count < 5000:
            if os.fork() == 0:
                time.sleep(60)
            count += 1
    except OSError:
        return True
'''
read = "def add(x, y):\\n    import os\\n    return os.path.exists('/etc/passwd')\\n"
with Sandbox(workers=2) as sandbox:
    right = Program("def add(x, y):\\n    return x + y\\n", ["assert add(1, 2) == 3"], "add")
    loop = Program("def add(x, y):\\n    while True: pass\\n", ["assert add(1, 2) == 3"], "add", 0.5)
    programs = [right, loop, Program(bomb, ["assert add(1, 2) is True"], "add"), right]
    print(sandbox.isolation, *(outcome.status for outcome in sandbox.run(programs)))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="the other tests run as a user already")
def test_it_works_for_a_user_without_privileges(sandbox):
    folder = Path(tempfile.mkdtemp(prefix="dare-bench-test-"))
    try:
        folder.chmod(0o755)
        copied = folder / "dare_bench" / "suites"
        copied.mkdir(parents=True)
        for name in ("__init__.py", "errors.py"):
            shutil.copy(ROOT / "suites" / name, copied / name)
        shutil.copytree(ROOT / "suites" / "sandbox", copied / "sandbox", ignore=shutil.ignore_patterns("__pycache__"))
        claim = users.claim()
        done = subprocess.run(
            [*levels.dropped(claim.uid), sandbox.python, "-B", "-c", AS_USER],
            env={"PYTHONPATH": str(folder), "PATH": os.environ["PATH"]},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        claim.close()
    finally:
        shutil.rmtree(folder)
    assert done.stdout == "bwrap passed timeout passed passed\n", done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root has users to give away")
def test_each_worker_has_a_user_of_its_own():
    first, second = users.claim(), users.claim()
    try:
        assert first.uid != second.uid
        first.close()
        third = users.claim()
        assert third.uid == first.uid
        third.close()
    finally:
        second.close()


@pytest.mark.parametrize(
    ("euid", "uid_map", "has"),
    [
        (0, "0 0 4294967295\n", True),
        (0, "0 100000 65536", True),
        (0, "0 1000 1", False),
        (1000, "0 0 4294967295", False),
    ],
)
def test_only_root_with_the_ids_has_users(euid, uid_map, has):
    assert users.has_users(euid, uid_map) is has


def test_other_systems_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    _probe_function.cache_clear()
    try:
        with pytest.raises(SandboxError, match="it needs Linux, this is darwin"):
            Sandbox()
    finally:
        _probe_function.cache_clear()


def built(level: str, monkeypatch: pytest.MonkeyPatch, uid: int | None = 61000) -> str:
    monkeypatch.setattr(levels, "_tool", lambda name: name)
    made = levels.command(
        level,
        "python3",
        "CODE",
        uid=uid,
        workers=3,
        limits=Limits(),
        cpu_seconds=6.0,
        last_seconds=38.0,
        folder="FOLDER",
        name="NAME",
    )
    return " ".join(made.argv)


def test_the_command_of_bubblewrap_is_hardened(monkeypatch):
    line = built("bwrap", monkeypatch)
    for part in (
        "setpriv --reuid=61000 --regid=61000 --clear-groups -- prlimit",
        "--as=1073741824 --cpu=6 --fsize=1048576 --nofile=64 --core=0 --nproc=64 -- bwrap",
        "--unshare-all --unshare-user --disable-userns --die-with-parent --new-session",
        "--info-fd {info}",
        "--ro-bind /usr /usr",
        "--proc /proc --dev /dev --size 16777216 --tmpfs /tmp",
        "--remount-ro /dev --remount-ro /",
        "--chdir /tmp --clearenv",
        "--cap-drop ALL python3",
    ):
        assert part in line, part
    assert "--bind" not in line.replace("--ro-bind", "")


def test_a_user_keeps_room_for_what_it_runs_already(monkeypatch):
    line = built("bwrap", monkeypatch, uid=None)
    assert "setpriv" not in line
    (limit,) = [int(part.removeprefix("--nproc=")) for part in line.split() if part.startswith("--nproc=")]
    assert limit > 3 * 64


def test_the_command_of_docker_is_hardened(monkeypatch):
    line = built("docker", monkeypatch)
    for part in (
        "docker run --rm --interactive --pull=never --name NAME --network=none --read-only",
        "--user=65534:65534 --cap-drop=ALL --security-opt=no-new-privileges --pids-limit=64",
        "--memory=1073741824 --memory-swap=1073741824",
        "python:3.11-slim timeout --signal=KILL 38 python3 -s",
    ):
        assert part in line, part


def test_a_missing_tool_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(SandboxError, match="prlimit is not installed"):
        levels.command("bwrap", "python3", "", uid=None, workers=1, limits=Limits(), cpu_seconds=1.0, last_seconds=1.0)


KILLED = """
import sys
from dare_bench.suites.sandbox import Program, Sandbox
code = "import time; time.sleep(3600)  # " + sys.argv[1]
source = f"def add(x, y):\\n    import os\\n    os.execv('/usr/bin/python3', ['python3', '-c', {code!r}])\\n"
Sandbox("bwrap", workers=1).run([Program(source, ["assert add(1, 2) == 3"], "add", 60)])
"""


def test_programs_end_with_the_process_that_started_them(sandbox, processes):
    mark = f"dare-bench-left-over-{os.getpid()}"
    with subprocess.Popen([sys.executable, "-c", KILLED, mark]) as process:
        # The process that was started has the mark in its arguments as well.
        assert eventually(lambda: len(processes(mark)) > 1)
        process.kill()
    assert eventually(lambda: processes(mark) == [])


def eventually(holds: Callable[[], bool]) -> bool:
    for _ in range(200):
        if holds():
            return True
        time.sleep(0.1)
    return False
