"""One run per runs folder and database: a kernel lock, freed by the kernel when its last holder dies."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dare_bench.harness.errors import LockHeld

#: How long to wait for the workers of a killed run: the kernel ends them at once, but not in zero time.
GRACE_S = 10.0


@contextmanager
def run_lock(runs: Path, db: str, command_line: str) -> Iterator[tuple[int, ...]]:
    """Hold the lock of a runs folder, and of a SQLite file that lies elsewhere.

    Args:
        runs: the folder; made when missing.
        db: database URL.
        command_line: told to whoever finds the lock held.

    Yields:
        Descriptors of the lock files. Worker processes inherit them, so that the lock lasts until the last of them is
        gone even if the parent is killed.

    Raises:
        LockHeld: another live run holds it; the message names it.
    """
    places = [runs / "run.lock"]
    if db.startswith("sqlite:///"):
        file = Path(db.removeprefix("sqlite:///"))
        if file.resolve().parent != runs.resolve():
            places.append(file.with_name(file.name + ".lock"))
    with ExitStack() as stack:
        yield tuple(stack.enter_context(_locked(place, command_line)) for place in places)


@contextmanager
def engine_lock(runs: Path, url: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a server that takes weights, as only one training job at a time may.

    Args:
        runs: the runs folder; jobs of other runs folders are not seen.
        url: of the server.
        waiting: called once a second while another job holds it.
    """
    base = url.rstrip("/").removesuffix("/v1").rstrip("/")
    place = runs / "engines" / f"{hashlib.sha256(base.encode()).hexdigest()[:16]}.lock"
    place.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
            time.sleep(1.0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _locked(place: Path, command_line: str) -> Iterator[int]:
    place.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(descriptor, place)
        holder = json.dumps({"pid": os.getpid(), "command": command_line, "since": time.strftime("%Y-%m-%d %H:%M:%S")})
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        try:
            yield descriptor
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, place: Path) -> None:
    deadline = time.monotonic() + GRACE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = _holder(descriptor)
            pid = holder.get("pid")
            if (isinstance(pid, int) and _is_alive(pid)) or time.monotonic() > deadline:
                raise LockHeld(
                    f"another run holds {place}: process {pid or 'unknown'} since {holder.get('since', 'unknown')} "
                    f"({holder.get('command', 'unknown command')}). "
                    "Wait for it or stop it, or use another --runs and --db."
                ) from None
        time.sleep(0.05)


def _holder(descriptor: int) -> dict[str, object]:
    text = os.pread(descriptor, 4096, 0)
    try:
        found = json.loads(text)
    except ValueError:
        return {}  # being written, or emptied by a run that just ended
    return found if isinstance(found, dict) else {}


def _is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return status not in ("Z", "X")
