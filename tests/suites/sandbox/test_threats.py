"""Programs that attack the machine or the grader, in a real sandbox."""

from __future__ import annotations

import os
import textwrap
import threading
import time
from pathlib import Path

import pytest
from dare_bench.suites.sandbox import Program, pool

TESTS = ("assert add(0, 1) == 1", "assert add(2, 3) == 5", "assert add(7, 5) == 12")
RIGHT = "def add(x, y):\n    return x + y\n"


def body(text: str) -> str:
    return "def add(x, y):\n" + textwrap.indent(textwrap.dedent(text).strip(), "    ") + "\n"


def test_a_right_program_passes_and_says_where_it_ran(run):
    outcome = run(RIGHT)
    assert outcome.passed
    assert (outcome.status, outcome.isolation, outcome.rate, outcome.flagged) == ("passed", "bwrap", 1.0, ())
    assert outcome.wall_s < 10


def test_each_test_counts(run):
    outcome = run("def add(x, y):\n    return 5 if x == 2 else 0\n")
    assert not outcome.passed
    assert (outcome.status, outcome.tests) == ("failed", (False, True, False))
    assert outcome.rate == pytest.approx(1 / 3)


OPEN = """
    import socket
    socket.create_connection(("{host}", {port}), timeout=1)
    return x + y
"""


def test_network_is_unreachable(run):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:  # a server of this machine would answer at once
        outcome = run(body(OPEN.format(host="127.0.0.1", port=server.getsockname()[1])))
    assert (outcome.status, outcome.rate) == ("failed", 0)
    assert run(body(OPEN.format(host="192.0.2.1", port=80))).status == "failed"


def test_nothing_can_be_written_outside_its_small_folder(run):
    source = """
        def add(x, y):
            import os
            wrote = []
            for folder in FOLDERS:
                try:
                    with open(folder + "/dare-bench-was-here", "w") as file:
                        file.write("x")
                    wrote.append(folder)
                except OSError:
                    continue
            return wrote
    """
    folders = [os.sep + name for name in ("", "usr", "usr/lib", "dev", "dev/shm", "etc", "root", "home", "var", "w")]
    outcome = run(f"FOLDERS = {folders!r}\n" + textwrap.dedent(source), ["assert add(1, 2) == []"])
    assert outcome.passed, outcome
    assert run(body("open('/tmp/dare-bench-was-here', 'w').write('x'); return x + y")).passed
    assert not Path(os.sep, "tmp", "dare-bench-was-here").exists()


def test_files_of_the_machine_are_not_there(run, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    places = [str(secret), *(os.sep + name for name in ("root", "home", "etc/passwd", "var", "proc/1/root/root"))]
    outcome = run(
        f"import os\ndef add(x, y):\n    return [place for place in {places!r} if os.path.exists(place)]\n",
        ["assert add(1, 2) == []"],
    )
    assert outcome.passed, outcome


def test_other_processes_are_not_there_and_cannot_be_killed(run):
    look = "def add(x, y):\n    import os\n    return [n for n in os.listdir('/proc') if n.isdigit()]\n"
    assert run(look, ["assert add(1, 2) == ['1']"]).passed
    kill = "import os, signal\nfor pid in (os.getppid(), -1, 1):\n    os.kill(pid, signal.SIGKILL)\nreturn 0"
    assert not run(body(kill)).passed


def test_it_is_nobody_without_rights_and_without_further_namespaces(run):
    source = """
        def add(x, y):
            import os
            with open("/proc/self/status") as file:
                rights = [line.split()[1] for line in file if line.startswith(("CapEff", "CapPrm", "CapBnd"))]
            if os.fork() == 0:
                import subprocess
                os._exit(subprocess.run(["unshare", "--user", "true"], stderr=subprocess.DEVNULL).returncode)
            return os.getuid() != 0, {int(right, 16) for right in rights}, os.wait()[1] != 0
    """
    tests = ["assert add(1, 2) == (True, {0}, True)" if os.getuid() == 0 else "assert add(1, 2)[1:] == ({0}, True)"]
    assert run(textwrap.dedent(source), tests).passed


def test_memory_bomb(run):
    bomb = "kept = []\nwhile True:\n    kept.append(bytearray(100_000_000))"
    outcome = run(body(bomb), ["assert add(1, 2) == 3"], timeout=20.0)
    assert (outcome.status, outcome.rate) == ("failed", 0)
    assert "MemoryError" in outcome.detail


def test_disk_is_small(run):
    one = (
        "with open('/tmp/a', 'wb') as file:\n    for _ in range(64):\n        file.write(bytes(1 << 16))\nreturn x + y"
    )
    assert not run(body(one)).passed  # 1 MiB for each file
    many = """
        import os
        total = 0
        try:
            for number in range(200):
                with open(f"/tmp/{number}", "wb") as file:
                    total += file.write(bytes(1 << 19))
        except OSError:
            return total <= 16 << 20
        return False
    """
    assert run(body(many), ["assert add(1, 2) is True"]).passed


@pytest.mark.skipif(os.getuid() != 0, reason="only root has users to give away")
def test_fork_bomb_of_a_root_process_ends_at_its_limit(run):
    source = """
        import os, time
        count = 0
        while count < 500:
            try:
                if os.fork() == 0:
                    time.sleep(60)
            except OSError:
                return count
            count += 1
        return count
    """
    outcome = run(body(source), ["assert add(1, 2) < 64"])
    assert outcome.status == "passed", outcome


def test_fork_bomb_leaves_nothing_and_the_next_programs_run(sandbox, processes):
    mark = "dare-bench-fork-bomb-mark"
    bomb = body(f"""
        import os
        while True:
            try:
                if os.fork() == 0:
                    os.execv("/usr/bin/python3", ["python3", "-c", "while 1: pass  # {mark}"])
            except OSError:
                continue
    """)
    tests = ["assert add(1, 2) == 3"]
    outcomes = sandbox.run([Program(bomb, tests, "add", 1.0)] * 2)
    assert [outcome.status for outcome in outcomes] == ["timeout"] * 2
    assert processes(mark) == []
    assert all(outcome.passed for outcome in sandbox.run([Program(RIGHT, tests, "add")] * 4))


LOOPS = {
    "endless loop": "while True:\n    pass",
    "loop that swallows everything": "while True:\n    try:\n        while True:\n            pass\n"
    "    except BaseException:\n        continue",
    "sleep": "import time\ntime.sleep(3600)\nreturn x + y",
    "loop in C": "return sum(range(10 ** 15))",
}


def test_time_is_limited(sandbox):
    begun = time.monotonic()
    programs = [Program(body(text), ["assert add(1, 2) == 3"], "add", 0.8) for text in LOOPS.values()]
    outcomes = sandbox.run(programs)
    assert [outcome.status for outcome in outcomes] == ["timeout"] * len(LOOPS)
    assert time.monotonic() - begun < 15


def test_tests_before_the_time_is_over_count(run):
    outcome = run("def add(x, y):\n    while x == 7:\n        pass\n    return x + y\n", timeout=1.0)
    assert (outcome.status, outcome.tests) == ("timeout", (True, True, False))


ENDS = {
    "sys.exit in the function": ("failed", body("import sys\nsys.exit(0)")),
    "sys.exit at the end": ("error", body("return 0") + "import sys\nsys.exit(0)\n"),
    "printed success": ("error", body("return 0") + "print('passed')\nprint('OK')\nraise SystemExit(0)\n"),
    "os._exit": ("crashed", body("import os\nos._exit(0)")),
    "exit": ("failed", body("exit()")),
    "input": ("failed", body("input()\nreturn x + y")),
    "segmentation fault": ("crashed", body("import ctypes\nctypes.string_at(0)")),
    "no function": ("error", "print(1)"),
    "another name": ("error", "def add_numbers(x, y):\n    return x + y\n"),
    "not Python": ("error", "def add(x, y:\n"),
    "zero byte": ("error", "def add(x, y):\n    return x + y\n\0"),
    "half a character": ("error", RIGHT + "# \ud800"),
}


def test_leaving_early_is_no_success(sandbox):
    outcomes = sandbox.run([Program(source, ["assert add(1, 2) == 3"], "add", 3.0) for _, source in ENDS.values()])
    assert {name: outcome.status for name, outcome in zip(ENDS, outcomes, strict=True)} == {
        name: status for name, (status, _) in ENDS.items()
    }


def test_a_thread_that_is_left_over_does_not_hold_the_verdict(run):
    begun = time.monotonic()
    source = RIGHT + "import threading, time\nthreading.Thread(target=lambda: time.sleep(3600)).start()\n"
    assert run(source, timeout=8.0).passed
    assert time.monotonic() - begun < 5


def test_output_is_cut(run):
    outcome = run(body("print('x' * 2_000_000)\nprint('end', x)\nreturn x + y"))
    assert outcome.passed
    assert len(outcome.output) <= 4096
    assert outcome.output.endswith("end 7\n")


def test_programs_run_beside_each_other(sandbox, monkeypatch):
    both = threading.Barrier(2, timeout=20)
    monkeypatch.setattr(pool, "judge", lambda place, program, uid, stop: (both.wait(), program.source)[1])
    assert sandbox.run([Program(str(number), (), "add") for number in range(4)]) == ["0", "1", "2", "3"]


def test_outcomes_keep_the_order_of_the_programs(sandbox):
    slow = body("import time\ntime.sleep(0.3)\nreturn 0")
    sources = [slow, RIGHT, slow, body("return 1")]
    outcomes = sandbox.run([Program(source, TESTS, "add") for source in sources])
    assert [outcome.tests for outcome in outcomes] == [(False,) * 3, (True,) * 3, (False,) * 3, (True, False, False)]


def test_slow_programs_can_be_run_again_alone(sandbox):
    outcome = sandbox.run(
        [Program(body("while True: pass"), ["assert add(1, 2) == 3"], "add", 0.5)], rerun_timeouts=True
    )
    assert outcome[0].status == "timeout"
    assert outcome[0].load >= 0
