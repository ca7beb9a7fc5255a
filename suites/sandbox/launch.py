"""One process in the sandbox: fed, read, stopped when its time is over, and waited for until nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from dare_bench.suites.sandbox.levels import INFO, Command

#: Seconds for isolation and interpreter to start; a program's own time begins behind it.
START_SECONDS = 30.0
#: Seconds for a killed process to be gone.
END_SECONDS = 10.0
#: Bytes of reports that are kept, the first ones.
MAX_REPORT = 1 << 18
_PIECE = 1 << 16


@dataclass
class Ended:
    """A process that has ended.

    Attributes:
        report: what it wrote to standard output, the first part.
        output: what it wrote to standard error, the last part.
        code: exit code; negative or above 128 = a signal.
        is_ready: whether the program was reached.
        is_timeout: whether it was stopped.
        wall_s: seconds from the moment it was ready.
    """

    report: bytes
    output: bytes
    code: int
    is_ready: bool
    is_timeout: bool
    wall_s: float


class Launch:
    """Runs one command; use `run` once."""

    def __init__(self, command: Command, payload: bytes, *, ready: bytes, seconds: float, keep: int) -> None:
        """Prepares.

        Args:
            command: what to start.
            payload: its standard input.
            ready: line of the report behind which the program's own time begins.
            seconds: wall time from there.
            keep: bytes of printed text to keep.
        """
        self._command = command
        self._payload = memoryview(payload)
        self._ready = ready
        self._seconds = seconds
        self._keep = keep
        self._report = bytearray()
        self._output = bytearray()
        self._info = bytearray()
        self._started: float | None = None

    def run(self, stop: threading.Event) -> Ended:
        """Starts it and returns when it is over; `stop` ends it early."""
        info_read, info_write = os.pipe()
        argv = [str(info_write) if part == INFO else part for part in self._command.argv]
        begun = time.monotonic()
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[info_write] if INFO in self._command.argv else [],
                start_new_session=True,
                cwd="/",
            )
        except OSError:
            os.close(info_read)
            raise
        finally:
            os.close(info_write)
        with open(info_read, "rb", buffering=0) as info, process:
            is_timeout = self._attend(process, info, begun, stop)
            if is_timeout:
                self._kill(process)
            self._drain(process)
            code = self._wait(process)
        now = time.monotonic()
        return Ended(
            bytes(self._report),
            bytes(self._output),
            code,
            self._started is not None,
            is_timeout,
            now - (self._started or begun),
        )

    def _attend(self, process: subprocess.Popen[bytes], info: object, begun: float, stop: threading.Event) -> bool:
        """Moves bytes until the process ends; returns whether its time is over before that."""
        pipes = {process.stdout: self._report, process.stderr: self._output, info: self._info}
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            for pipe in (process.stdin, *pipes):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_WRITE if pipe is process.stdin else selectors.EVENT_READ)
            end = os.pidfd_open(process.pid)
            stack.callback(os.close, end)
            selector.register(end, selectors.EVENT_READ)
            while True:
                limit = begun + START_SECONDS if self._started is None else self._started + self._seconds
                left = limit - time.monotonic()
                if left <= 0 or stop.is_set():
                    return True
                for key, _ in selector.select(min(left, 0.5)):
                    if key.fileobj == end:
                        return False
                    if key.fileobj is process.stdin:
                        is_open = self._feed(process)
                    else:
                        is_open = self._take(key.fileobj, pipes[key.fileobj])
                    if not is_open:
                        selector.unregister(key.fileobj)

    def _feed(self, process: subprocess.Popen[bytes]) -> bool:
        try:
            self._payload = self._payload[os.write(process.stdin.fileno(), self._payload[:_PIECE]) :]
        except BlockingIOError:
            return True
        except OSError:  # it ended before it read
            self._payload = memoryview(b"")
        if not self._payload:
            with contextlib.suppress(OSError):
                process.stdin.close()
        return bool(self._payload)

    def _take(self, pipe: object, buffer: bytearray) -> bool:
        """Reads a piece; returns whether more can come."""
        try:
            piece = os.read(pipe.fileno(), _PIECE)  # type: ignore[attr-defined]
        except BlockingIOError:
            return True
        if buffer is self._output:
            buffer += piece
            del buffer[: -self._keep]
        elif len(buffer) < MAX_REPORT:
            buffer += piece
        if buffer is self._report and self._started is None and self._ready in buffer:
            self._started = time.monotonic()
        return bool(piece)

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        """Takes what is left in the pipes; somebody may hold them open for ever, so nothing is waited for."""
        for pipe, buffer in ((process.stdout, self._report), (process.stderr, self._output)):
            for _ in range(64):
                before = len(buffer)
                if not self._take(pipe, buffer) or len(buffer) == before:
                    break

    def _child(self, process: subprocess.Popen[bytes]) -> int | None:
        """Returns the process whose end ends the whole sandbox."""
        try:
            return int(json.loads(self._info)["child-pid"])
        except (ValueError, KeyError):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            return int(children.read_text().split()[0])
        except (OSError, IndexError):
            return None

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """Ends the sandbox from inside out: the child first, then whoever waits for it has nothing left to wait for."""
        level = self._command.level
        if level == "docker":
            subprocess.run([self._command.argv[0], "kill", self._command.container], capture_output=True, check=False)
        elif level == "none":
            self._kill_group(process)
        elif (child := self._child(process)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        else:
            process.kill()

    @staticmethod
    def _kill_group(process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        if self._command.level == "none":
            self._kill_group(process)  # what the program left behind; its number is taken until it is waited for
        try:
            return process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
