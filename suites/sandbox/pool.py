"""Many programs at a time."""

from __future__ import annotations

import functools
import os
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from dare_bench.suites.errors import SuiteError
from dare_bench.suites.sandbox import users
from dare_bench.suites.sandbox.judge import Place, judge
from dare_bench.suites.sandbox.probe import chosen
from dare_bench.suites.sandbox.program import Limits, Outcome, Program


class Sandbox:
    """Runs programs isolated from the machine and from each other.

    Attributes:
        isolation: the level programs run at; each outcome has it too.
        python: the interpreter inside.
        workers: programs at the same time.
    """

    def __init__(
        self,
        level: str | None = None,
        workers: int | None = None,
        allow_unsafe: bool = False,
        *,
        limits: Limits | None = None,
        python: str | None = None,
    ) -> None:
        """Finds out what works here; that takes a moment the first time.

        Args:
            level: ``bwrap``, ``unshare``, ``docker`` or ``none``; null = the strongest that works.
            workers: programs at the same time; null = CPUs of this process.
            allow_unsafe: whether to run without isolation where nothing else works.
            limits: of one program.
            python: interpreter that users without privileges can read; null = one of the system.

        Raises:
            SandboxError: the level does not work here, or nothing does and that is not allowed.
            UnknownNameError: no such level.
        """
        if workers is not None and not 1 <= workers <= 256:
            raise SuiteError(f"workers: {workers!r}; allowed: 1 to 256")
        found = chosen(level, python, allow_unsafe)
        self.workers = min(256, len(os.sched_getaffinity(0))) if workers is None else workers
        self.isolation = found.level
        self.python = found.python
        self._place = Place(found.level, found.python, limits or Limits(), self.workers)
        self._users: queue.SimpleQueue[users.Claim | None] = queue.SimpleQueue()
        for _ in range(self.workers):
            self._users.put(users.claim() if users.has_users() and self.isolation != "docker" else None)

    def run(self, programs: Sequence[Program], *, rerun_timeouts: bool = False) -> list[Outcome]:
        """Runs programs.

        Args:
            programs: any number.
            rerun_timeouts: run those that ran out of time once more, one at a time: slowness may be the machine's.

        Returns:
            Outcomes in the order of the programs; nothing of a program is left running.

        Raises:
            DataError: tests do not parse.
            SandboxError: the sandbox does not start any more.
        """
        if not programs:
            return []
        stop = threading.Event()
        with ThreadPoolExecutor(min(self.workers, len(programs)), thread_name_prefix="sandbox") as threads:
            waiting = [threads.submit(self._one, program, stop) for program in programs]
            try:
                outcomes = [future.result() for future in waiting]
            except BaseException:  # an interrupt, or one that cannot be run: the others are not waited for
                stop.set()
                for future in waiting:
                    future.cancel()
                raise
        if rerun_timeouts:
            outcomes = [
                self._one(program, stop) if outcome.status == "timeout" else outcome
                for program, outcome in zip(programs, outcomes, strict=True)
            ]
        return outcomes

    def close(self) -> None:
        """Gives back the users of the workers; the sandbox is of no use afterwards."""
        while not self._users.empty():
            claim = self._users.get()
            if claim is not None:
                claim.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _one(self, program: Program, stop: threading.Event) -> Outcome:
        claim = self._users.get()
        try:
            return judge(self._place, program, None if claim is None else claim.uid, stop)
        finally:
            self._users.put(claim)


def shared(level: str | None = None, workers: int | None = None, allow_unsafe: bool = False) -> Sandbox:
    """Returns the sandbox of this process with these settings; raises as `Sandbox`."""
    return _made(os.getpid(), level, workers, allow_unsafe)


@functools.cache
def _made(process: int, level: str | None, workers: int | None, allow_unsafe: bool) -> Sandbox:
    # By process: a fork has no right to the users that its parent claimed.
    return Sandbox(level, workers, allow_unsafe)
