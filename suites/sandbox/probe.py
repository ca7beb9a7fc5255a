"""What isolation this machine gives: every level is tried once with a program that looks around."""

from __future__ import annotations

import functools
import sys
import threading
from dataclasses import dataclass

from dare_bench.suites.errors import unknown_name
from dare_bench.suites.sandbox import levels, users
from dare_bench.suites.sandbox.judge import Place, judge
from dare_bench.suites.sandbox.program import LEVELS, Program, SandboxError

#: What to do where nothing works.
ADVICE = (
    "install bubblewrap (apt install bubblewrap, dnf install bubblewrap) and, in a container, allow user namespaces; "
    "or pass allow_unsafe=True to run model-written code without isolation: scores are then marked as such"
)

_LOOK = """
def look(deep):
    import os, socket
    seen = []
    if {name for _, name in socket.if_nameindex()} - {"lo"}:
        seen.append("network")
    if sum(name.isdigit() for name in os.listdir("/proc")) > 3:
        seen.append("processes")
    if deep and (os.path.exists("/etc/passwd") or os.path.exists("/home") or os.path.exists("/root")):
        seen.append("files")
    for folder in ("/", "/dev", "/usr") if deep else ():
        if os.access(folder, os.W_OK):
            seen.append("writable " + folder)
    return ", ".join(seen)
"""


@dataclass(frozen=True)
class Isolation:
    """What a level is worth here.

    Attributes:
        level: one of `LEVELS`.
        is_usable: whether programs run at it and are held back.
        detail: interpreter, or why it is not usable.
        python: interpreter inside.
    """

    level: str
    is_usable: bool
    detail: str
    python: str = ""


@functools.cache
def probe(level: str, python: str | None = None) -> Isolation:
    """Tries a level; the result is remembered in this process.

    Args:
        level: one of `LEVELS`.
        python: interpreter to use; null = one of the system.

    Returns:
        What it is worth; never raises for a level that does not work.
    """
    if level not in LEVELS:
        raise unknown_name("isolation level", level, LEVELS)
    if sys.platform != "linux":
        return Isolation(level, False, f"it needs Linux, this is {sys.platform}")
    found = levels.pythons(python)
    if not found and level != "docker":
        return Isolation(
            level, False, "no Python in /usr/bin or /usr/local/bin; install python3 of the system, or name one"
        )
    reasons = []
    for path in found or ["python3"]:
        try:
            reason = _tried(level, path)
        except (SandboxError, OSError) as error:
            reason = str(error)
        if reason is None:
            return Isolation(level, True, f"Python {path}", path)
        reasons.append(reason)
    return Isolation(level, False, reasons[0])


def _tried(level: str, python: str) -> str | None:
    """Runs the program that looks around; returns what is wrong."""
    if level == "none":
        program = Program("def look(deep): return ''", ["assert look(True) == ''"], "look")
    else:
        program = Program(_LOOK, [f"assert look({level == 'bwrap'}) == ''"], "look")
    claim = users.claim() if users.has_users() else None
    try:
        uid = None if claim is None else claim.uid
        outcome = judge(Place(level, python, tries=1), program, uid, threading.Event())
    finally:
        if claim is not None:
            claim.close()
    return None if outcome.passed else f"programs are not held back ({outcome.status}: {outcome.detail})"


def best(python: str | None = None) -> Isolation:
    """Returns the strongest level that works here; ``none`` where no other does."""
    for level in LEVELS[:-1]:
        found = probe(level, python)
        if found.is_usable:
            return found
    return probe("none", python)


def chosen(level: str | None, python: str | None, allow_unsafe: bool) -> Isolation:
    """Returns the isolation to use.

    Args:
        level: the one asked for; null = the strongest.
        python: interpreter; null = one of the system.
        allow_unsafe: whether level ``none`` is allowed.

    Raises:
        SandboxError: it does not work here, or is none and that is not allowed.
    """
    found = best(python) if level is None else probe(level, python)
    if found.level == "none" and not allow_unsafe:
        tried = "; ".join(f"{name}: {probe(name, python).detail}" for name in LEVELS[:-1])
        why = "level 'none' is no isolation" if level == "none" else f"no isolation works here ({tried})"
        raise SandboxError(f"model-written code is not run: {why}; {ADVICE}")
    if not found.is_usable:
        raise SandboxError(f"isolation level {found.level!r} does not work here: {found.detail}; {ADVICE}")
    return found
