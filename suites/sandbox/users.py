"""Unprivileged users for the programs of a root process: one for each worker, so that limits of processes are its own."""

from __future__ import annotations

import errno
import socket

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
