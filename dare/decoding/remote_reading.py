"""Reading a server's answer: whole bodies by a deadline, server-sent events, and what can be wrong with them. No torch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from urllib3.exceptions import ConnectTimeoutError, HTTPError, IncompleteRead, ProtocolError, TimeoutError
from urllib3.response import BaseHTTPResponse

EXCERPT = 300
CHUNK = 65536


class RemoteError(RuntimeError):
    """A request that a server did not answer as it should.

    Attributes:
        url: what was asked.
        status: HTTP status; null when there was no whole answer.
        body: the beginning of the answer.
        attempts: how often it was tried.
    """

    def __init__(
        self, url: str, what: str, advice: str, *, status: int | None = None, body: str = "", attempts: int = 1
    ) -> None:
        tries = f" after {attempts} attempts" if attempts > 1 else ""
        code = f"HTTP {status}: " if status is not None else ""
        said = f" The server said: {excerpt(body)}" if body else ""
        super().__init__(f"{url}: {code}{what}{tries}.{said} {advice}")
        self.url, self.status, self.body, self.attempts = url, status, excerpt(body), attempts


class Failure(Exception):
    """One attempt that failed; `again` says whether another one may succeed."""

    def __init__(
        self, what: str, *, status: int | None = None, body: str = "", again: bool = True, asked: float | None = None
    ) -> None:
        super().__init__(what)
        self.what, self.status, self.body, self.again, self.asked = what, status, body, again, asked


def excerpt(text: str) -> str:
    """The beginning of a text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= EXCERPT else flat[:EXCERPT] + "…"


def whole(response: BaseHTTPResponse, until: float) -> bytes:
    """The body, by the deadline; gives the connection back."""
    parts = []
    for part in _parts(response):
        if time.monotonic() > until:
            response.close()
            raise Failure("no whole answer within the time limit")
        parts.append(part)
    response.release_conn()
    return b"".join(parts)


def _parts(response: BaseHTTPResponse) -> Iterator[bytes]:
    """The body as it arrives, also when the server trickles it."""
    try:
        while part := response.read1(CHUNK, decode_content=True):
            yield part
    except (HTTPError, OSError) as error:
        response.close()
        raise broken(error, None) from error


def event_data(response: BaseHTTPResponse, silence_s: float) -> Iterator[str]:
    """Data of server-sent events; comments keep the connection alive, but not longer than `silence_s` without data."""
    waiting, last = b"", time.monotonic()
    lines: list[str] = []
    for part in _parts(response):
        waiting += part
        *complete, waiting = waiting.replace(b"\r\n", b"\n").split(b"\n")
        for raw in complete:
            line = raw.decode("utf-8", "replace")
            if line.startswith("data:"):
                lines.append(line[5:].removeprefix(" "))
            elif not line and lines:
                yield "\n".join(lines)
                lines, last = [], time.monotonic()
        if time.monotonic() - last > silence_s:
            raise Failure(f"no event for {silence_s:g} s")
    if lines:
        yield "\n".join(lines)


def parse(text: str, status: int) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failure(f"the answer is not whole JSON ({error})", status=status, body=text) from error


def broken(error: Exception, timeout_s: float | None) -> Failure:
    """A connection that failed, as an attempt that may be repeated."""
    if isinstance(error, ConnectTimeoutError):  # a refused connection is one, too
        return Failure(f"cannot be reached ({error})")
    if isinstance(error, TimeoutError):
        return Failure(f"no answer within {timeout_s:g} s" if timeout_s else "no answer within the time limit")
    if isinstance(error, ProtocolError | IncompleteRead):
        return Failure(f"the connection broke off ({error})")
    return Failure(f"cannot be reached ({error})")
