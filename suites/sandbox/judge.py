"""The verdict on one program: a first run, and a second one with tests that must fail."""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dare_bench.suites.sandbox import levels
from dare_bench.suites.sandbox.launch import START_SECONDS, Ended, Launch
from dare_bench.suites.sandbox.program import Limits, Outcome, Program, SandboxError
from dare_bench.suites.sandbox.suspects import suspicious
from dare_bench.suites.sandbox.units import Unit, imported, mentioned, traps, units

#: Modules whose types a result may have, beside builtins.
TYPE_MODULES = ("collections", "datetime", "decimal", "fractions", "numpy", "re")
#: A longer program is not run.
MAX_SOURCE = 200_000
#: CPU time of a process as a part of the wall time.
CPU_SHARE = 0.75
_CPU_SIGNALS = (128 + 9, 128 + 24, -9, -24)


@dataclass(frozen=True)
class Place:
    """Where programs run.

    Attributes:
        level: of isolation.
        python: interpreter inside.
        limits: of each program.
        workers: programs at the same time.
        tries: times a sandbox that does not start is tried.
    """

    level: str
    python: str
    limits: Limits = field(default_factory=Limits)
    workers: int = 1
    tries: int = 3


@dataclass(frozen=True)
class _Run:
    """What one run reported."""

    passed: list[bool]
    words: list[str]
    error: str | None
    is_done: bool
    is_timeout: bool
    ended: Ended


def judge(place: Place, program: Program, uid: int | None, stop: threading.Event) -> Outcome:
    """Runs a program against its tests.

    Args:
        place: where.
        program: what.
        uid: unprivileged user of this worker, for a root process.
        stop: ends it early; the outcome is then of no use.

    Returns:
        The outcome; it never depends on what the program prints or on its exit status.

    Raises:
        DataError: the tests do not parse.
        SandboxError: the sandbox does not start.
    """
    begun = time.monotonic()
    pieces = units(program.tests)
    count = sum(piece.counts for piece in pieces)
    flags = suspicious(program.source)

    def outcome(status: str, detail: str, passed: Sequence[bool] = (), output: bytes = b"") -> Outcome:
        return Outcome(
            passed=status == "passed",
            status=status,
            detail=detail,
            flagged=flags,
            wall_s=time.monotonic() - begun,
            isolation=place.level,
            tests=(*passed, *[False] * (count - len(passed))),
            load=os.getloadavg()[0],
            output=output.decode("utf-8", "replace"),
        )

    if len(program.source) > MAX_SOURCE:
        return outcome("error", f"the program has {len(program.source)} characters, {MAX_SOURCE} are allowed")
    first = _run(place, program, pieces, program.timeout, uid, stop)
    status, detail = _first_status(first, count, program.timeout)
    printed = first.ended.output
    if not any(first.passed):
        return outcome(status, detail, (), printed)
    kept = _up_to_last_passed(pieces, first.passed)
    must_fail = traps(pieces, first.passed, program.source)
    # Room for slowness: the first run has decided about time.
    second = _run(place, program, [*kept, *must_fail], 2 * program.timeout, uid, stop)
    honest = first.passed[: sum(piece.counts for piece in kept)]
    if any(second.passed[len(honest) :]):
        return outcome("forged", "a test that must fail passed in the second run", (), printed)
    if not second.is_done or second.passed != [*honest, *[False] * len(must_fail)]:
        why = "it ran out of time" if second.is_timeout else "other tests passed, or it ended early"
        return outcome("unconfirmed", f"the second run came to another result: {why}", (), printed)
    return outcome(status, detail, first.passed, printed)


def _first_status(run: _Run, count: int, seconds: float) -> tuple[str, str]:
    if run.error is not None:
        return "error", run.error
    done = f"{len(run.passed)} of {count} tests were over"
    if run.is_timeout:
        return "timeout", f"stopped after {seconds:g} s of wall time or {CPU_SHARE * seconds:g} s of CPU time; {done}"
    if not run.is_done:
        return "crashed", f"the process ended with code {run.ended.code} before the tests did; {done}"
    if all(run.passed):
        return "passed", f"{count} of {count} tests"
    number = run.passed.index(False)
    return "failed", f"test {number + 1} of {count}: {run.words[number]}"


def _up_to_last_passed(pieces: Sequence[Unit], passed: Sequence[bool]) -> list[Unit]:
    """Returns the pieces up to the last test that passed: one behind it may have been what used up the time."""
    last = max(index for index, is_passed in enumerate(passed) if is_passed)
    kept, seen = [], -1
    for piece in pieces:
        seen += piece.counts
        if piece.counts and seen > last:
            break
        kept.append(piece)
    return kept


def _run(
    place: Place, program: Program, pieces: Sequence[Unit], seconds: float, uid: int | None, stop: threading.Event
) -> _Run:
    """Runs a program once; a sandbox that does not start is tried again."""
    nonce = secrets.token_hex(16)
    payload = json.dumps(_job(program, pieces, nonce)).encode()
    ready = f"{nonce} ready\n".encode()
    ended = None
    for attempt in range(place.tries):
        stop.wait(0.2 * attempt)
        with _command(place, seconds, uid) as command:
            ended = Launch(command, payload, ready=ready, seconds=seconds, keep=place.limits.output).run(stop)
        if ended.is_ready or stop.is_set():
            return _read(ended, nonce, CPU_SHARE * seconds)
    said = ended.output.decode("utf-8", "replace").strip()[-300:] or f"exit code {ended.code}"
    raise SandboxError(f"the sandbox ({place.level}) does not start: {said}; `dare-bench doctor` tells what works here")


def _job(program: Program, pieces: Sequence[Unit], nonce: str) -> dict[str, object]:
    texts = (program.source, *(piece.code for piece in pieces))
    kinds = [name for name in TYPE_MODULES if any(name in text for text in texts)]
    further = imported(pieces) | ({"random"} if any("random" in text for text in texts) else set())
    return {
        "nonce": nonce,
        "source": program.source,
        "entry_point": program.entry_point,
        "names": mentioned(pieces, program.source, program.entry_point),
        "modules": [*kinds, *sorted(further - set(kinds))],
        "types": kinds,
        "units": [{"code": piece.code, "counts": piece.counts} for piece in pieces],
    }


def _read(ended: Ended, nonce: str, cpu_seconds: float) -> _Run:
    """Reads the lines that bear the nonce."""
    passed: list[bool] = []
    words: list[str] = []
    error, is_done = None, False
    for line in ended.report.decode("utf-8", "replace").split("\n")[:-1]:
        mark, _, rest = line.partition(" ")
        kind, _, rest = rest.partition(" ")
        if mark != nonce or is_done:
            continue
        if kind == "unit":
            number, _, rest = rest.partition(" ")
            verdict, _, why = rest.partition(" ")
            if number == str(len(passed)):
                passed.append(verdict == "passed")
                words.append(why)
        elif kind == "error":
            error = rest
        elif kind == "done":
            is_done = True
    ran_out = not is_done and error is None and ended.code in _CPU_SIGNALS and ended.wall_s >= 0.5 * cpu_seconds
    return _Run(passed, words, error, is_done, ended.is_timeout or ran_out, ended)


@contextmanager
def _command(place: Place, seconds: float, uid: int | None) -> Iterator[levels.Command]:
    """Yields the command of one run; at level ``none`` with a folder of its own."""
    folder = ""
    if place.level == "none":
        folder = tempfile.mkdtemp(prefix="dare-bench-program-")
        if uid is not None:
            os.chown(folder, uid, uid)
    try:
        yield levels.command(
            place.level,
            place.python,
            _inside(),
            uid=uid,
            workers=place.workers,
            limits=place.limits,
            cpu_seconds=CPU_SHARE * seconds,
            last_seconds=seconds + START_SECONDS,
            folder=folder,
            name=f"dare-bench-{secrets.token_hex(8)}",
        )
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _inside() -> str:
    """Text of what runs inside."""
    return Path(__file__).with_name("inside.py").read_text(encoding="utf-8")
