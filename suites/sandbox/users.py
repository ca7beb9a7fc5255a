"""Unprivileged users for the programs of a root process: one for each worker, so that limits of processes are its own."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from dare_bench.suites.sandbox.program import SandboxError

#: User ids that no distribution hands out (systemd lists 60706-61183 as unused).
FIRST, LAST = 60706, 61183


class Claim:
    """A user id that this process alone uses until `close`."""

    def __init__(self, uid: int, mark: socket.socket) -> None:
        self.uid = uid
        self._mark = mark

    def close(self) -> None:
        """Gives it back."""
        self._mark.close()


def has_users(euid: int | None = None, uid_map: str | None = None) -> bool:
    """Whether this process is root and may become one of these users.

    Args:
        euid: effective user id; null = of this process.
        uid_map: text of its map of user ids; null = read.

    Returns:
        False as well in a user namespace without these ids; root of such a one is an ordinary user, and limits hold.
    """
    if (os.geteuid() if euid is None else euid) != 0:
        return False
    text = Path(os.sep, "proc", "self", "uid_map").read_text() if uid_map is None else uid_map
    spans = [(int(first), int(count)) for first, _, count in (line.split() for line in text.splitlines())]
    return any(first <= FIRST and first + count > LAST for first, count in spans)


def claim() -> Claim:
    """Claims a user id.

    The mark is a socket name in memory: it is taken by one process at a time and vanishes with that process, however it
    ends.

    Raises:
        SandboxError: all are in use.
    """
    for uid in range(FIRST, LAST + 1):
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            mark.bind(f"\0dare-bench-sandbox-{uid}")
        except OSError as error:
            mark.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        return Claim(uid, mark)
    raise SandboxError(f"all {LAST + 1 - FIRST} users for sandboxed programs are in use; use fewer workers")
