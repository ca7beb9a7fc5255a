"""JSON over HTTP with deadlines and retries: what every remote back end speaks. Imports no torch."""

from __future__ import annotations

import contextlib
import email.utils
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import urllib3
from dare_bench.dare.decoding.remote_reading import Failure, RemoteError, broken, event_data, parse, whole
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

#: Answers that mean "not now"; every other 4xx says that the request itself is wrong and is never repeated.
RETRIED = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Retry:
    """When and how often a request is repeated.

    Attributes:
        attempts: at most, the first one included.
        first_s: pause before the second attempt; doubles from there.
        longest_s: no pause is longer, whatever `Retry-After` asks for.
    """

    attempts: int = 6
    first_s: float = 0.5
    longest_s: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_s < 0 or self.longest_s < 0:
            raise ValueError(f"{self}; allowed: at least one attempt, pauses of 0 or more seconds")

    def pause(self, attempt: int, asked: float | None) -> float:
        """Seconds to wait after attempt number `attempt` (from 1); `asked` is the server's Retry-After."""
        backoff = self.first_s * 2.0 ** (attempt - 1)
        # Clients that were refused together must not come back together: up to a quarter more.
        backoff *= 1 + random.random() / 4
        return min(max(backoff, asked or 0.0), self.longest_s)


class Client:
    """Connections to one server; safe to use from many threads.

    Args:
        base: URL, for example ``http://127.0.0.1:30000``; a trailing ``/v1`` is taken off.
        timeout_s: for a whole answer, from the request to its last byte. Streams: between two chunks.
        connect_s: to reach the server.
        retry: of failed attempts.
        headers: sent with every request.
        connections: kept open.

    Raises:
        ValueError: for a base that is no http(s) URL, or a timeout that is not positive.
    """

    def __init__(
        self,
        base: str,
        *,
        timeout_s: float = 600.0,
        connect_s: float = 10.0,
        retry: Retry | None = None,
        headers: Mapping[str, str] | None = None,
        connections: int = 32,
    ) -> None:
        if not base.startswith(("http://", "https://")):
            raise ValueError(f"server address {base!r}; allowed: a URL such as 'http://127.0.0.1:30000'")
        if not (timeout_s > 0 and connect_s > 0):
            raise ValueError(f"timeout_s {timeout_s!r}, connect_s {connect_s!r}; allowed: positive seconds")
        self.base = base.rstrip("/").removesuffix("/v1").rstrip("/")
        self.timeout_s, self.connect_s = timeout_s, connect_s
        self.retry = retry or Retry()
        self._headers = {"Accept": "application/json", **(headers or {})}
        # Retries are ours: urllib3's own know nothing of JSON that was cut off.
        self._pool = urllib3.PoolManager(num_pools=2, maxsize=connections, retries=False)

    def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        """POST JSON, with retries.

        Args:
            path: for example ``/generate``.
            body: sent as JSON.
            timeout_s: overrides the client's.

        Returns:
            The answer's JSON; null for an empty answer.

        Raises:
            RemoteError: the request is refused, or every attempt failed.
        """
        return self.repeat(path, lambda: self.once(path, body, timeout_s=timeout_s))

    def get(self, path: str, *, timeout_s: float | None = None) -> Any:
        """GET JSON, with retries; arguments, result and errors as in `post`."""
        return self.repeat(path, lambda: self.once(path, None, timeout_s=timeout_s))

    def probe(self, path: str, timeout_s: float) -> None:
        """GET once, whatever the answer holds.

        Raises:
            Failure: there is no answer, or one that is not 2xx.
        """
        response = self._open("GET", path, None, timeout_s)
        whole(response, time.monotonic() + timeout_s)

    def repeat(self, path: str, attempt: Callable[[], Any], given_up: threading.Event | None = None) -> Any:
        """Call `attempt` until it gives a result; what it finds wrong it raises as `Failure`.

        Args:
            path: for messages.
            attempt: one try.
            given_up: set when nobody wants the result any more.

        Raises:
            RemoteError: the last failure, when there is no sense in another attempt.
        """
        given_up = given_up or threading.Event()
        for number in range(1, self.retry.attempts + 1):
            try:
                return attempt()
            except Failure as failure:
                if not failure.again or number == self.retry.attempts or given_up.is_set():
                    raise self.error(path, failure, number) from failure
                given_up.wait(self.retry.pause(number, failure.asked))
        raise AssertionError("a Retry has at least one attempt")

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """POST, and read the answer's server-sent events up to ``[DONE]``; never repeated.

        Args:
            path: for example ``/v1/completions``.
            body: sent as JSON.

        Yields:
            The JSON of each event.

        Raises:
            RemoteError: the request is refused, or the stream ends before ``[DONE]``.
        """
        try:
            response = self._open("POST", path, body, self.timeout_s)
            with contextlib.closing(response):
                for data in event_data(response, self.timeout_s):
                    if data == "[DONE]":
                        return
                    yield parse(data, response.status)
            raise Failure("the stream ended before [DONE]")
        except Failure as failure:
            raise self.error(path, failure, 1) from failure

    def error(self, path: str, failure: Failure, attempts: int) -> RemoteError:
        """A failure as the error that users see."""
        advice = _advice(failure, self)
        return RemoteError(
            self.base + path, failure.what, advice, status=failure.status, body=failure.body, attempts=attempts
        )

    def close(self) -> None:
        """Close idle connections."""
        self._pool.clear()

    def once(self, path: str, body: Mapping[str, Any] | None, *, timeout_s: float | None = None) -> Any:
        """One attempt: POST with a body, GET without.

        Raises:
            Failure: it failed.
        """
        limit = timeout_s or self.timeout_s
        until = time.monotonic() + limit
        response = self._open("GET" if body is None else "POST", path, body, limit)
        raw = whole(response, until)
        return parse(raw.decode("utf-8", "replace"), response.status) if raw.strip() else None

    def _open(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> BaseHTTPResponse:
        """Send a request; the status is 2xx and the body unread."""
        headers = dict(self._headers)
        payload = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            payload = json.dumps(body, allow_nan=False).encode()
        limits = urllib3.Timeout(connect=min(self.connect_s, timeout_s), read=timeout_s)
        try:
            response = self._pool.request(
                method, self.base + path, body=payload, headers=headers, timeout=limits, preload_content=False,
                redirect=False,
            )  # fmt: skip
        except (HTTPError, OSError) as error:
            raise broken(error, timeout_s) from error
        if 200 <= response.status < 300:
            return response
        try:
            text = whole(response, time.monotonic() + self.connect_s).decode("utf-8", "replace")
        except Failure as failure:
            text = f"(unreadable: {failure.what})"
        again = response.status in RETRIED
        what = "the server cannot answer now" if again else "the request is refused"
        asked = _seconds(response.headers.get("Retry-After")) if again else None
        raise Failure(what, status=response.status, body=text, again=again, asked=asked)


class Gate:
    """Counts requests in flight; `closed` waits until there are none and lets none begin."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count, self._shut = 0, False

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)
            self._count += 1

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Wait for what is in flight; what comes next waits for `open`."""
        with self._changed:
            self._shut = True
            self._changed.wait_for(lambda: not self._count)

    def open(self) -> None:
        """Let requests begin again."""
        with self._changed:
            self._shut = False
            self._changed.notify_all()


def _seconds(value: str | None) -> float | None:
    """A Retry-After header: seconds, or a date."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    moment = email.utils.parsedate_tz(value)
    return None if moment is None else max(email.utils.mktime_tz(moment) - time.time(), 0.0)


def _advice(failure: Failure, client: Client) -> str:
    if failure.status is None:
        return (
            f"Check that the server runs at {client.base} and has room for the request; a longer limit: timeout_s "
            f"(now {client.timeout_s:g})."
        )
    if failure.status in (401, 403):
        return "Give the key it wants: headers={'Authorization': 'Bearer ...'}."
    if failure.status in (404, 405):
        return "The server has no such route or model: check the address, the model's name and the kind of back end."
    if failure.status in RETRIED:
        return "It is overloaded or broken: ask for fewer requests at once (concurrency), or look at its log."
    if 400 <= failure.status < 500:
        return "Correct the request: the message above names what the server does not take."
    return "Look at the server's log."
