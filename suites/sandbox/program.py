"""What goes into the sandbox and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dare_bench.suites.errors import SuiteError

#: Levels of isolation, the strongest first.
LEVELS = ("bwrap", "unshare", "docker", "none")

MIB = 1 << 20


class SandboxError(SuiteError):
    """Programs cannot be run here; never a verdict about a program."""


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Attributes:
        memory: bytes of address space of each process.
        file_size: bytes of each file.
        disk: bytes of all files together.
        processes: processes and threads at a time.
        open_files: file descriptors of each process.
        output: bytes of printed text that are kept, the last ones.
    """

    memory: int = 1024 * MIB
    file_size: int = MIB
    disk: int = 16 * MIB
    processes: int = 64
    open_files: int = 64
    output: int = 4096


@dataclass(frozen=True)
class Program:
    """A program and what it is held against.

    Attributes:
        source: the program, as extracted from the answer.
        tests: assert statements (texts that hold no assert prepare the ones behind them), or one text of them.
        entry_point: name of the function that the tests call.
        timeout: seconds of wall time from the moment the program starts; three quarters of it, of CPU time.
    """

    source: str
    tests: str | Sequence[str]
    entry_point: str
    timeout: float = 8.0

    def __post_init__(self) -> None:
        if not 0 < self.timeout <= 3600:
            raise SuiteError(f"timeout: {self.timeout!r}; allowed: seconds above 0, up to 3600")
        if not self.entry_point.isidentifier():
            raise SuiteError(f"entry_point: {self.entry_point!r}; allowed: the name of a function")


@dataclass(frozen=True)
class Outcome:
    """The verdict on one program.

    Attributes:
        passed: every test passed, and the second run confirmed it.
        status: ``passed``; ``failed`` (a test failed); ``error`` (it does not compile, raises before the tests, or has
            no entry point); ``crashed`` (the process ended early); ``timeout``; ``forged`` (a test that must fail
            passed); ``unconfirmed`` (the second run came to another result).
        detail: why, in words.
        flagged: names in the source that a person should look at; they do not change the verdict.
        wall_s: seconds from start to verdict, the second run included.
        isolation: the level it ran at.
        tests: whether each test passed; all false where the program is forged or unconfirmed.
        load: machine load (tasks ready to run, average of a minute) when it ended.
        output: the end of what it printed.
    """

    passed: bool
    status: str
    detail: str
    flagged: tuple[str, ...]
    wall_s: float
    isolation: str
    tests: tuple[bool, ...] = ()
    load: float = 0.0
    output: str = ""

    @property
    def rate(self) -> float:
        """Share of the tests that passed."""
        return sum(self.tests) / len(self.tests) if self.tests else 0.0
