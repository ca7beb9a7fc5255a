"""Several processes for one training job: started here, told who they are as torchrun would tell them, and listened to.

The worker that got the job keeps the database; the processes only train. The first of them reports in JSON lines.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dare_bench.harness.errors import JobError
from dare_bench.harness.executors.worker import describe, die_with_parent

if TYPE_CHECKING:
    from dare_bench.harness.jobs.session import Session

#: How a member of a group is started.
MEMBER = (sys.executable, "-m", "dare_bench.harness.jobs.group")


def train(
    job: dict[str, Any],
    session: Session,
    out_dir: Path,
    on_point: Callable[[int, dict[str, Any], dict[str, Any]], None],
    on_resume: Callable[[int], None],
) -> dict[str, Any]:
    """Train in several processes.

    Args:
        job: of kind ``train``.
        session: of the worker; its settings name the devices.
        out_dir: folder of the run.
        on_point, on_resume: as in the training loop; called in this process.

    Returns:
        path, sha256, step and totals of the checkpoint.

    Raises:
        JobError: with the error of the process that failed first.
    """
    session.forget()
    count = int(session.settings["ranks"])
    with ExitStack() as stack:
        errors = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        members = []
        stack.callback(_end, members)
        port = _free_port()
        for rank in range(count):
            asked = {"job": job, "settings": session.settings, "out_dir": str(out_dir), "parent": os.getpid()}
            asked["errors"] = str(errors / f"{rank}.txt")
            members.append(
                subprocess.Popen(
                    [*MEMBER, json.dumps(asked)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    env=os.environ | _rendezvous(rank, count, port),
                )
            )
        result = None
        assert members[0].stdout is not None
        for line in members[0].stdout:  # ends when the first process does
            message = json.loads(line)
            if message["type"] == "point":
                on_point(message["step"], message["metrics"], message["timing"])
            elif message["type"] == "resume":
                on_resume(message["step"])
            else:
                result = message["result"]
        codes = [member.wait() for member in members] if result is not None else [1]
        if result is None or any(codes):
            _end(members)
            raise JobError(_first_error(errors, count))
    return result


def _rendezvous(rank: int, count: int, port: int) -> dict[str, str]:
    """Variables that torch and accelerate read."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(members: list[subprocess.Popen[bytes]]) -> None:
    """Stop what still runs: a process whose peer is gone would wait for it."""
    for member in members:
        if member.poll() is None:
            member.kill()
        member.wait()
        if member.stdout is not None:
            member.stdout.close()


def _first_error(folder: Path, count: int) -> str:
    written = sorted(folder.glob("*.txt"), key=lambda path: path.stat().st_mtime_ns)
    if not written:
        return f"one of the {count} training processes ended without a message (killed, perhaps for memory)"
    return written[0].read_text("utf-8")


def main() -> None:
    """One member: train, report if it is the first."""
    asked = json.loads(sys.argv[1])
    die_with_parent(asked["parent"])
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to the job's log

    def send(**message: Any) -> None:
        channel.write(json.dumps(message) + "\n")

    try:
        result = _member(asked, send)
    except Exception as error:
        Path(asked["errors"]).write_text(describe(error), "utf-8")
        raise
    send(type="done", result=result)


def _member(asked: dict[str, Any], send: Callable[..., None]) -> dict[str, Any]:
    from dare_bench.harness.jobs import train as job_kind
    from dare_bench.harness.jobs.session import Session

    settings = asked["settings"]
    devices = str(settings["device"]).split("+")
    session = Session({**settings, "device": devices[int(os.environ["RANK"]) % len(devices)]})
    result = job_kind.fit(
        asked["job"],
        session,
        Path(asked["out_dir"]),
        on_point=lambda step, metrics, timing: send(type="point", step=step, metrics=metrics, timing=timing),
        on_resume=lambda step: send(type="resume", step=step),
    )
    return {"path": str(result.path), "sha256": result.sha256, "step": result.step, "totals": result.totals}


if __name__ == "__main__":
    main()
