"""Worker processes on this machine: one job each at a time, a checkpoint kept loaded between jobs that share it.

Workers are separate interpreters spoken to in JSON lines over pipes: nothing is pickled, a crash of one cannot harm
another, and the kernel ends them when this process ends (`worker.die_with_parent`).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dare_bench.harness.executors.schedule import Schedule
from dare_bench.harness.jobs.spec import Context, Job

WORKER = (sys.executable, "-m", "dare_bench.harness.executors.worker")

#: Beginning of the error of a job that was not started because one it needs failed.
NOT_RUN = "not run:"

#: glibc: keep freed memory instead of returning it to the kernel; large tensors are then reused (training 1.2 times
#: faster on CPU, measured on the tiny models).
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}


@dataclass(frozen=True)
class Event:
    """Something happened to a job.

    Attributes:
        what: ``started``, ``progress``, ``done``, ``failed`` or ``blocked`` (a job it depends on failed).
        job: the job.
        worker: number of the worker, or -1.
        done, total, note: of a progress report.
        error: of a failure.
        wall_s: of a finished job.
    """

    what: str
    job: Job
    worker: int = -1
    done: float = 0.0
    total: float = 0.0
    note: str = ""
    error: str | None = None
    wall_s: float = 0.0


@dataclass
class _Worker:
    number: int
    device: str
    process: subprocess.Popen[bytes]
    job: Job | None = None
    affinity: str | None = None
    started: float = 0.0
    buffer: bytearray = field(default_factory=bytearray)


class LocalExecutor:
    """Runs jobs in worker processes.

    Args:
        devices: one entry per worker, the device it is bound to.
        context: shared by all jobs.
        on_event: called in this process for every event, before the next job is chosen.
        inherit: descriptors handed to the workers (the run lock).
        command: how a worker is started; it must serve `worker.main`.
    """

    def __init__(
        self,
        devices: Sequence[str],
        context: Context,
        on_event: Callable[[Event], None],
        *,
        inherit: tuple[int, ...] = (),
        command: Sequence[str] = WORKER,
    ) -> None:
        self._devices = list(devices)
        self._context = context
        self._on_event = on_event
        self._inherit = inherit
        self._command = list(command)
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()

    def run(self, jobs: Sequence[Job], *, on_idle: Callable[[], None] | None = None) -> dict[str, str | None]:
        """Run jobs to the end; a failure stops only what depends on it.

        Args:
            jobs: what is to be done; parents that are not in the list are done.
            on_idle: called at least once a second.

        Returns:
            fingerprint -> null, or the error of a failed or blocked job.
        """
        schedule, outcomes = Schedule(jobs), {}
        try:
            while not schedule.is_finished:
                self._start_jobs(schedule)
                for key, _ in self._selector.select(timeout=1.0):
                    self._read(key.data, schedule, outcomes)
                if on_idle:
                    on_idle()
        finally:
            self._stop()
        return outcomes

    def _start_jobs(self, schedule: Schedule) -> None:
        for number, device in enumerate(self._devices):
            worker = next((known for known in self._workers if known.number == number), None)
            if worker is not None and worker.job is not None:
                continue
            others = [known.affinity for known in self._workers if known is not worker and known.affinity]
            job = schedule.take(worker.affinity if worker else None, others)
            if job is None:
                return
            worker = worker or self._spawn(number, device)
            worker.job, worker.affinity, worker.started = job, job.affinity or worker.affinity, time.monotonic()
            self._on_event(Event("started", job, number))
            message = json.dumps({**job.message(), "log_name": job.log_name}) + "\n"
            assert worker.process.stdin is not None
            try:
                worker.process.stdin.write(message.encode())
                worker.process.stdin.flush()
            except BrokenPipeError:
                continue  # it died; its closed pipe is read next and fails the job

    def _spawn(self, number: int, device: str) -> _Worker:
        settings = {**asdict(self._context), "device": device, "parent": os.getpid(), "worker": number}
        log = Path(self._context.runs) / "logs" / f"worker-{number}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [*self._command, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                pass_fds=self._inherit,
                env=self._environment(device),
            )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        worker = _Worker(number, device, process)
        self._workers.append(worker)
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        return worker

    def _environment(self, device: str) -> dict[str, str]:
        values = dict(os.environ)
        if device == "cpu":
            values = {**_MALLOC, **values}
            threads = str(self._context.threads or 1)
            values |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
            values["CUDA_VISIBLE_DEVICES"] = ""
        values["TOKENIZERS_PARALLELISM"] = "false"
        return values

    def _read(self, worker: _Worker, schedule: Schedule, outcomes: dict[str, str | None]) -> None:
        assert worker.process.stdout is not None
        data = worker.process.stdout.read(1 << 16)
        if data is None:
            return
        if not data:
            self._bury(worker, schedule, outcomes)
            return
        worker.buffer += data
        *lines, rest = bytes(worker.buffer).split(b"\n")
        worker.buffer = bytearray(rest)
        for line in lines:
            message = json.loads(line)
            if worker.job is not None and message["type"] == "progress":
                event = Event("progress", worker.job, worker.number, message["done"], message["total"], message["note"])
                self._on_event(event)
            elif worker.job is not None and message["type"] == "finished":
                self._finish(worker, message.get("error"), schedule, outcomes)

    def _finish(self, worker: _Worker, error: str | None, schedule: Schedule, outcomes: dict[str, str | None]) -> None:
        job = worker.job
        assert job is not None
        worker.job = None
        outcomes[job.fingerprint] = error
        wall_s = time.monotonic() - worker.started
        if error is None:
            schedule.done(job.fingerprint)
            self._on_event(Event("done", job, worker.number, wall_s=wall_s))
            return
        self._on_event(Event("failed", job, worker.number, error=error, wall_s=wall_s))
        for blocked in schedule.failed(job.fingerprint):
            reason = f"{NOT_RUN} {job.label} failed"
            outcomes[blocked.fingerprint] = reason
            self._on_event(Event("blocked", blocked, error=reason))

    def _bury(self, worker: _Worker, schedule: Schedule, outcomes: dict[str, str | None]) -> None:
        """A worker closed its pipe: it is dead. Its job failed; the next job gets a new worker."""
        assert worker.process.stdout is not None
        self._selector.unregister(worker.process.stdout)
        self._workers.remove(worker)
        code = _reap(worker.process)
        if worker.job is not None:
            self._finish(worker, _death(code), schedule, outcomes)

    def _stop(self) -> None:
        for worker in self._workers:
            if worker.job is not None:  # an interrupted run: nothing that is lost is more than one batch
                worker.process.kill()
            elif worker.process.stdin is not None:
                worker.process.stdin.close()
        for worker in self._workers:
            _reap(worker.process)
        self._workers.clear()
        self._selector.close()


def _reap(process: subprocess.Popen[bytes]) -> int:
    try:
        code = process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and not pipe.closed:
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # an unsent message to a dead worker
    return code


def _death(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = (
            "; probably the machine ran out of memory: use fewer --jobs or a smaller batch" if name == "SIGKILL" else ""
        )
        return f"the worker process was ended by {name}{hint}"
    return f"the worker process ended by itself with code {code}"
