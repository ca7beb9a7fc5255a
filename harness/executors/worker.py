"""The worker process: reads jobs as JSON lines from standard input, reports on what was standard output.

Started as ``python -m dare_bench.harness.executors.worker``. Everything a job prints goes to the job's log file.
torch is imported by the first job that needs it, never before.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

#: Runs one job: (job message, worker settings, report(done, total, note)). Raises when the job fails.
Runner = Callable[[dict[str, Any], dict[str, Any], Callable[[float, float, str], None]], None]
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, however it dies.

    Args:
        parent: pid that must still be the parent; else the process ends now.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def main(run: Runner) -> None:
    """Serve jobs until standard input ends.

    Args:
        run: runs one job.
    """
    settings = json.loads(sys.argv[1])
    die_with_parent(settings["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    _send(channel, {"type": "ready"})
    for line in sys.stdin:
        job = json.loads(line)
        _send(channel, _serve(job, settings, run, channel))


def _serve(job: dict[str, Any], settings: dict[str, Any], run: Runner, channel: TextIO) -> dict[str, Any]:
    def report(done: float, total: float, note: str = "") -> None:
        _send(channel, {"type": "progress", "done": done, "total": total, "note": note})

    log = Path(settings["runs"]) / "logs" / job["log_name"]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as stream:
        _redirect(stream.fileno())
        try:
            print(f"{job['kind']} {job['fingerprint']} {job['label']} (process {os.getpid()})", flush=True)
            run(job, settings, report)
        except Exception as error:
            traceback.print_exc()
            return {"type": "finished", "ok": False, "error": describe(error)}
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    return {"type": "finished", "ok": True}


def _redirect(descriptor: int) -> None:
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def describe(error: BaseException) -> str:
    """An error as one paragraph: its text, with the class when the text alone would not be understood."""
    text = str(error).strip()
    own = type(error).__module__.startswith("dare_bench.")
    return text if own and text else f"{type(error).__name__}: {text}" if text else type(error).__name__


def _send(channel: TextIO, message: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # the parent is gone; the kernel is about to end this process
        channel.write(json.dumps(message) + "\n")


def _run_job(job: dict[str, Any], settings: dict[str, Any], report: Callable[[float, float, str], None]) -> None:
    from dare_bench.harness.jobs.session import run_job

    run_job(job, settings, report)


if __name__ == "__main__":
    main(_run_job)
