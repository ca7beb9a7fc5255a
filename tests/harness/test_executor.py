"""The local executor with fake jobs: order, failures, deaths, and workers that end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dare_bench.harness.executors.local import Event, LocalExecutor
from dare_bench.harness.executors.schedule import Schedule
from dare_bench.harness.jobs.spec import Context, Job

WORKER = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


def job(name: str, *parents: str, kind: str = "generate", cost: float = 0, affinity: str = "", **spec: object) -> Job:
    return Job(kind, name, f"label {name}", parents, cost, affinity, dict(spec))


def execute(jobs: list[Job], runs: Path, workers: int = 2) -> tuple[dict[str, str | None], list[Event]]:
    events: list[Event] = []
    context = Context(db="", runs=str(runs), data=None, environment_id=None)
    outcomes = LocalExecutor(["cpu"] * workers, context, events.append, command=WORKER).run(jobs)
    return outcomes, events


def test_training_first_then_long_jobs_then_shared_checkpoints() -> None:
    schedule = Schedule(
        [
            job("g-short", cost=1, affinity="x"),
            job("g-long", cost=5, affinity="y"),
            job("t-short", kind="train", cost=1),
            job("t-long", kind="train", cost=9),
            job("s", kind="score"),
        ]
    )
    order = [schedule.take(None) for _ in range(2)]
    assert [found.fingerprint for found in order if found] == ["t-long", "t-short"]
    assert schedule.take("x", others=["y"]).fingerprint == "g-short"  # type: ignore[union-attr]
    assert schedule.take("x", others=["y"]).fingerprint == "g-long"  # type: ignore[union-attr]
    assert schedule.take(None).fingerprint == "s"  # type: ignore[union-attr]
    assert schedule.take(None) is None and not schedule.is_finished


def test_a_child_waits_for_its_parent_and_falls_with_it() -> None:
    schedule = Schedule([job("a"), job("b", "a"), job("c", "b"), job("d")])
    first, second = schedule.take(None), schedule.take(None)
    assert {first.fingerprint, second.fingerprint} == {"a", "d"}  # type: ignore[union-attr]
    assert schedule.take(None) is None
    assert [blocked.fingerprint for blocked in schedule.failed("a")] == ["b", "c"]
    schedule.done("d")
    assert schedule.is_finished


def test_a_parent_outside_the_list_is_done() -> None:
    assert Schedule([job("b", "done before")]).n_ready == 1


def test_workers_persist_and_output_goes_to_the_job_log(tmp_path: Path) -> None:
    jobs = [job(f"j{index}") for index in range(6)] + [job("last", *(f"j{index}" for index in range(6)))]
    outcomes, events = execute(jobs, tmp_path)
    assert outcomes == {found.fingerprint: None for found in jobs}
    notes = [line.split() for line in (tmp_path / "notes.txt").read_text().splitlines()]
    assert len({pid for pid, _ in notes}) <= 2 and notes[-1][1] == "last"
    assert "said by the job" in (tmp_path / "logs" / jobs[0].log_name).read_text()
    assert sum(event.what == "progress" for event in events) == 7


def test_a_failure_stops_only_what_needs_it(tmp_path: Path) -> None:
    outcomes, events = execute([job("bad", fail="no luck"), job("child", "bad"), job("other")], tmp_path, workers=1)
    assert outcomes == {"bad": "ValueError: no luck", "child": "not run: label bad failed", "other": None}
    assert {event.what for event in events if event.job.fingerprint == "child"} == {"blocked"}
    assert "Traceback" in (tmp_path / "logs" / job("bad").log_name).read_text()


def test_a_dead_worker_fails_its_job_and_is_replaced(tmp_path: Path) -> None:
    outcomes, _ = execute([job("dies", die=True, cost=9), job("lives")], tmp_path, workers=1)
    assert "SIGKILL" in str(outcomes["dies"]) and outcomes["lives"] is None


def test_an_exception_in_the_parent_ends_the_workers(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(event: Event) -> None:
        if event.what == "progress":
            raise Stop

    context = Context(db="", runs=str(tmp_path), data=None, environment_id=None)
    try:
        LocalExecutor(["cpu"], context, stop, command=WORKER).run([job("slow", sleep=60)])
        raise AssertionError("the exception was swallowed")
    except Stop:
        pid = int((tmp_path / "notes.txt").read_text().split()[0])
    assert not Path(f"/proc/{pid}").exists()


PARENT = """
import sys
from dare_bench.harness.executors.local import LocalExecutor
from dare_bench.harness.jobs.spec import Context, Job
context = Context(db="", runs=sys.argv[1], data=None, environment_id=None)
jobs = [Job("generate", name, name, spec={"sleep": 60}) for name in "ab"]
LocalExecutor(["cpu"] * 2, context, lambda event: None, command=(sys.executable, sys.argv[2])).run(jobs)
"""


def test_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), WORKER[1]])
    notes = tmp_path / "notes.txt"
    deadline = time.monotonic() + 30
    while not (notes.exists() and len(notes.read_text().splitlines()) == 2):
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.05)
    workers = [int(line.split()[0]) for line in notes.read_text().splitlines()]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 5
    while alive := [pid for pid in workers if is_running(pid)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
