"""One connection of a client to `dare-bench serve`: reading requests, writing answers, noticing that it is gone."""

from __future__ import annotations

import json
import select
import socket
import sys
import time
import traceback
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dare_bench.harness.serve_errors import Refusal

if TYPE_CHECKING:
    from dare_bench.harness.serve import Server, Service
    from dare_bench.harness.serve_answer import Reply

_ROUTES = {
    "/v1/chat/completions": "POST", "/v1/completions": "POST", "/v1/models": "GET", "/health": "GET", "/": "GET",
}  # fmt: skip
#: Seconds between two looks whether the client is still there.
LOOK_S = 0.5
#: A stream without news sends a comment this often, so that nothing in between gives it up.
COMMENT_S = 10.0
#: Seconds for which a refused body is still read.
DRAIN_S = 2.0


class Handler(BaseHTTPRequestHandler):
    """Answers requests of one connection, one after another."""

    protocol_version = "HTTP/1.1"
    server_version = "dare-bench"
    #: Seconds a connection may be idle, or a body on its way.
    timeout = 75
    disable_nagle_algorithm = True
    server: Server
    _is_streaming = False

    @property
    def service(self) -> Service:
        """What answers."""
        return self.server.service

    def do_GET(self) -> None:
        """Route a request."""
        self._route("GET")

    def do_POST(self) -> None:
        """Route a request."""
        self._route("POST")

    def do_PUT(self) -> None:
        """Refused."""
        self._route("PUT")

    def do_DELETE(self) -> None:
        """Refused."""
        self._route("DELETE")

    def do_PATCH(self) -> None:
        """Refused."""
        self._route("PATCH")

    def do_HEAD(self) -> None:
        """Refused."""
        self._route("HEAD")

    def do_OPTIONS(self) -> None:
        """Refused."""
        self._route("OPTIONS")

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged one by one."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library finds wrong with a request line or its headers, in JSON like everything else."""
        self.close_connection = True
        self.request_version = self.protocol_version  # of a request line that could not be read: answer in full
        status = 405 if int(code) == 501 else int(code)
        self._refuse(Refusal(status, message or "the request cannot be read", code="bad_request"))

    def _route(self, method: str) -> None:
        with self.service:
            try:
                self._answer(method, urlsplit(self.path).path)
            except Refusal as refusal:
                self._refuse(refusal)
                if self.close_connection:
                    self._drain()
            except (ConnectionError, TimeoutError):
                self.close_connection = True  # the client went away
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                self.close_connection = True
                if self._is_streaming:  # its headers are sent: all that is left is to break off
                    return
                self._refuse(Refusal(500, f"internal error: {type(error).__name__}: {error}", code="internal"))

    def _answer(self, method: str, path: str) -> None:
        path = path.rstrip("/") or "/"
        single = "/v1/models/" + self.service.defaults.names[0]
        wanted = "GET" if path == single else _ROUTES.get(path)
        if wanted is None or method != wanted:
            self.close_connection = True  # a body may follow that nobody reads
        if wanted is None:
            known = ", ".join(f"{verb} {route}" for route, verb in _ROUTES.items() if route != "/")
            raise Refusal(404, f"no route {path!r}; allowed: {known}", code="not_found")
        if method != wanted:
            raise Refusal(405, f"{method} {path}: allowed: {wanted}", code="method", headers={"Allow": wanted})
        if path == "/health":
            self._health()
        elif path == "/":
            self._send(200, {"model": self.service.defaults.names[0], "routes": sorted(set(_ROUTES) - {"/"})})
        elif wanted == "GET":
            self._models(None if path == "/v1/models" else single)
        else:
            reply = self.service.take(self._body(), is_chat=path == "/v1/chat/completions")
            self._stream(reply) if reply.ask.stream else self._whole(reply)

    def _health(self) -> None:
        service = self.service
        if service.stopping:
            raise Refusal(503, "the server is shutting down", code="shutting_down", headers={"Connection": "close"})
        if not service.is_alive:
            raise Refusal(500, "the thread that decodes has ended; restart the server", code="dead")
        self._send(200, {"status": "ok", **service.scheduler.load})

    def _models(self, single: str | None) -> None:
        service = self.service
        names = service.defaults.names[:1]
        items = [
            {
                "id": name, "object": "model", "created": service.started, "owned_by": "dare-bench",
                "max_model_len": service.model.longest,
            }
            for name in names
        ]  # fmt: skip
        self._send(200, items[0] if single else {"object": "list", "data": items})

    def _body(self) -> bytes:
        """The request's body.

        Raises:
            Refusal: 411 without a length, 413 when it is too large.
        """
        length = self.headers.get("Content-Length")
        if length is None or not length.strip().isdigit():
            self.close_connection = True
            raise Refusal(411, "give Content-Length; other transfer encodings are not read", code="no_length")
        size = int(length)
        if size > self.server.max_body:
            self.close_connection = True
            raise Refusal(413, f"the body has {size} bytes; allowed: {self.server.max_body}", code="too_large")
        raw = self.rfile.read(size)
        if len(raw) < size:
            raise ConnectionAbortedError("the client went away while it sent its request")
        return raw

    def _whole(self, reply: Reply) -> None:
        """Wait for all answers of a request, and send them together."""
        ticket = reply.ticket
        while not ticket.done:
            if not ticket.wait(LOOK_S) and self._is_gone():
                self._give_up(reply)
                return
        if ticket.error is not None:
            self.service.scheduler.cancel(ticket)
            raise ticket.error
        self._send(200, reply.whole())

    def _stream(self, reply: Reply) -> None:
        """Send finished blocks as they come."""
        ticket, open_, quiet = reply.ticket, False, time.monotonic()
        try:
            while True:
                fresh = ticket.wait(LOOK_S)
                if ticket.error is not None:
                    self.service.scheduler.cancel(ticket)
                    if not open_:
                        raise ticket.error
                    self._event(ticket.error.body)
                    break
                done = ticket.done
                chunks = reply.news() if fresh else []
                waited = time.monotonic() - quiet > COMMENT_S
                if not open_ and (chunks or waited):
                    self._open_stream()
                    chunks, open_ = [*reply.first(), *chunks], True
                for chunk in chunks:
                    self._event(chunk)
                if chunks:
                    quiet = time.monotonic()
                elif waited:
                    self._piece(b": waiting\n\n")
                    quiet = time.monotonic()
                if done:
                    for chunk in reply.last():
                        self._event(chunk)
                    self._piece(b"data: [DONE]\n\n")
                    break
                if not fresh and self._is_gone():
                    self._give_up(reply)
                    return
            self.wfile.write(b"0\r\n\r\n")
            self._is_streaming = False
        except OSError:
            self._give_up(reply)

    def _open_stream(self) -> None:
        self._is_streaming = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, body: dict[str, Any]) -> None:
        self._piece(b"data: " + json.dumps(body).encode() + b"\n\n")

    def _piece(self, raw: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))

    def _give_up(self, reply: Reply) -> None:
        self.service.scheduler.cancel(reply.ticket)
        self.close_connection = True

    def _drain(self) -> None:
        """Read what the client still sends: a connection closed on unread bytes takes the answer with it."""
        try:
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(DRAIN_S)
            until = time.monotonic() + DRAIN_S
            while time.monotonic() < until and self.rfile.read1(1 << 16):
                continue
        except OSError:
            self.close_connection = True

    def _is_gone(self) -> bool:
        """Whether the client has closed its side of the connection."""
        try:
            look = select.poll()
            look.register(self.connection, select.POLLIN)
            return bool(look.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _send(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        closing = self.close_connection or self.service.stopping
        for name, value in {**({"Connection": "close"} if closing else {}), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def _refuse(self, refusal: Refusal) -> None:
        try:
            self._send(refusal.status, refusal.body, refusal.headers)
        except OSError:
            self.close_connection = True
