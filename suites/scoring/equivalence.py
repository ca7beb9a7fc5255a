"""Whether two mathematical answers are the same: text, then exact numbers, then algebra in a process with a time limit."""

from __future__ import annotations

import atexit
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from dare_bench.suites.errors import SuiteError
from dare_bench.suites.scoring import quantity
from dare_bench.suites.scoring.latex_text import normalised

#: Seconds for one comparison; the worker is killed then and the answers count as different.
TIME_LIMIT = 10.0
#: Seconds for a fresh worker to import SymPy.
START_LIMIT = 60.0
_MODULE = "dare_bench.suites.scoring.algebra"
#: Rule of a comparison that was cut off.
TIMEOUT = "grader timeout"
#: Longer answers are not handed to algebra.
MAX_CHARS = 500
#: Verdicts that are remembered: the responses of a group repeat each other.
REMEMBERED = 20_000


@dataclass(frozen=True)
class Comparison:
    """A verdict and how it was reached.

    Attributes:
        equal: whether the answers are the same.
        rule: ``text``, ``number``, ``algebra``, ``too long`` or ``grader timeout``.
    """

    equal: bool
    rule: str


def same_by_text(answer: str, gold: str) -> Comparison | None:
    """Compares without algebra: normalised text, then exact plain numbers; null when neither decides."""
    if normalised(answer) == normalised(gold):
        return Comparison(bool(normalised(gold)), "text")
    if len(answer) > MAX_CHARS or len(gold) > MAX_CHARS:
        return Comparison(False, "too long")
    first, second = (quantity.read_number(text)[0] for text in (answer, gold))
    return None if first is None or second is None else Comparison(first == second, "number")


def compare(answer: str, gold: str, *, seconds: float = TIME_LIMIT) -> Comparison:
    """Compares two answers; takes at most about `seconds`.

    Args:
        answer: LaTeX or text, for example the content of a box.
        gold: the right answer.
        seconds: time for the algebra.

    Returns:
        The verdict, on any text.

    Raises:
        SuiteError: the packages that algebra needs are not installed.
    """
    return same_by_text(answer, gold) or _ALGEBRA.compare(answer, gold, seconds)


@dataclass
class Algebra:
    """A worker process that is started when it is needed and again after it was killed.

    Attributes:
        timeouts: comparisons that were cut off so far.
    """

    timeouts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _owner: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: OrderedDict[tuple[str, str], Comparison] = field(default_factory=OrderedDict)

    def compare(self, answer: str, gold: str, seconds: float = TIME_LIMIT) -> Comparison:
        """Asks the worker; a verdict that was reached before is remembered."""
        with self._lock:
            key = (answer, gold)
            if key not in self._known:
                self._known[key] = self._ask(answer, gold, seconds)
                if len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
            return self._known[key]

    def stop(self) -> None:
        """Ends the worker."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _ask(self, answer: str, gold: str, seconds: float) -> Comparison:
        process = self._running()
        question = json.dumps({"answer": answer, "gold": gold, "seconds": seconds}) + "\n"
        try:
            process.stdin.write(question.encode())  # type: ignore[union-attr]  # both pipes are asked for
            process.stdin.flush()  # type: ignore[union-attr]
            # The worker's own alarm comes first; the second more is for one that cannot hear it.
            reply = json.loads(_line(process.stdout.fileno(), seconds + 1.0))  # type: ignore[union-attr]
        except (OSError, ValueError):  # it died (alarm, memory), or the time is over
            self.stop()
            self.timeouts += 1
            return Comparison(False, TIMEOUT)
        return Comparison(bool(reply["equal"]), "algebra")

    def _running(self) -> subprocess.Popen[bytes]:
        """Returns a worker of this process that is ready."""
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        self.stop()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(sys.executable).anchor,
            start_new_session=True,
        )
        self._process, self._owner = process, os.getpid()
        if _line(process.stdout.fileno(), START_LIMIT) != b"ready\n":  # type: ignore[union-attr]
            self.stop()
            raise SuiteError(
                f"the process that compares mathematical answers does not start; `python -m {_MODULE} < /dev/null` "
                "shows why (it needs the packages math-verify and sympy)"
            )
        return process


def _line(descriptor: int, seconds: float) -> bytes:
    """Returns the next line of a pipe, or what there is when the time is over or the pipe ends."""
    end, found = time.monotonic() + seconds, b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not found.endswith(b"\n") and selector.select(max(0.0, end - time.monotonic())):
            piece = os.read(descriptor, 65536)
            if not piece:
                break
            found += piece
    return found


_ALGEBRA = Algebra()
atexit.register(_ALGEBRA.stop)
