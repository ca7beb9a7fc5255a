"""`dare-bench serve`: OpenAI-compatible routes over HTTP. Imports no torch; one thread owns the model, see `serve_queue`."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import ThreadingHTTPServer
from typing import Any, Protocol

from dare_bench.harness.serve_answer import Reply
from dare_bench.harness.serve_errors import Refusal
from dare_bench.harness.serve_handler import Handler
from dare_bench.harness.serve_prompts import Prompt
from dare_bench.harness.serve_queue import Row, Scheduler, Session, Ticket
from dare_bench.harness.serve_request import Ask, Defaults, parse


class Model(Protocol):
    """What is served; `harness.jobs.serving.ServedModel`, or something like it."""

    longest: int | None
    vocabulary: int
    reads_text: bool

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation."""

    def encode_text(self, text: str) -> list[int]:
        """Token ids of plain text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids."""

    def open_session(self, decoder: Any) -> Session:
        """A stream of prompts under one decoder."""


class Service:
    """A model that answers requests.

    Args:
        defaults: names, family and decoder settings.
        load: gives the model; called in the thread that decodes.
        slots: rows decoded at once.
        max_queue: rows that may wait.
    """

    def __init__(self, defaults: Defaults, load: Callable[[], Model], *, slots: int, max_queue: int) -> None:
        self.defaults = defaults
        self.scheduler = Scheduler(slots, max_queue)
        self.started = int(time.time())
        self.stopping = False
        self._model: Model | None = None
        self._broken: BaseException | None = None
        self._ready = threading.Event()
        self._active, self._idle = 0, threading.Condition()
        self._thread = threading.Thread(target=self._work, args=(load,), name="model", daemon=True)

    def start(self) -> None:
        """Load the model.

        Raises:
            Exception: whatever loading raises.
        """
        self._thread.start()
        self._ready.wait()
        if self._broken is not None:
            raise self._broken

    @property
    def model(self) -> Model:
        """The loaded model."""
        assert self._model is not None
        return self._model

    @property
    def is_alive(self) -> bool:
        """Whether the thread that decodes still runs."""
        return self._thread.is_alive()

    def __enter__(self) -> None:
        """A request begins; `finish` waits for it."""
        with self._idle:
            self._active += 1

    def __exit__(self, *error: object) -> None:
        """A request is answered."""
        with self._idle:
            self._active -= 1
            self._idle.notify_all()

    def take(self, raw: bytes, *, is_chat: bool) -> Reply:
        """Check a request and queue it.

        Args:
            raw: its body.
            is_chat: which route.

        Raises:
            Refusal: it cannot be answered.
        """
        if self.stopping:
            raise Refusal(503, "the server is shutting down", code="shutting_down", headers={"Connection": "close"})
        if not self.is_alive:
            raise Refusal(500, "the thread that decodes has ended; restart the server and see its log", code="dead")
        ask = parse(raw, is_chat=is_chat, defaults=self.defaults)
        encoded = [self._encode(prompt, ask) for prompt in ask.prompts]
        rows = [Row(prompt, seed) for prompt in encoded for seed in ask.seeds]
        ticket = Ticket(rows, ask.decoder, progress=ask.stream)
        self.scheduler.submit(ticket)
        return Reply(ask, ticket, self.defaults.names[0], self.model.decode)

    def finish(self, grace_s: float, at_once: threading.Event | None = None) -> bool:
        """Let running requests end, then end the thread.

        Args:
            grace_s: seconds they have.
            at_once: set to wait no longer.

        Returns:
            Whether all were answered.
        """
        self.stopping = True
        until = time.monotonic() + grace_s
        done = False
        while not done and time.monotonic() < until and not (at_once and at_once.is_set()):
            with self._idle:
                done = self._idle.wait_for(lambda: not self._active, min(0.2, grace_s))
        self.scheduler.stop()
        if not done:
            with self._idle:  # those that were cut off still get their 503
                self._idle.wait_for(lambda: not self._active, 5.0)
        self._thread.join(10.0)
        return done

    def _work(self, load: Callable[[], Model]) -> None:
        try:
            self._model = load()
        except BaseException as error:
            self._broken = error
            self._ready.set()
            return
        self._ready.set()
        self.scheduler.run(self._model.open_session)

    def _encode(self, prompt: Prompt, ask: Ask) -> list[int]:
        model, param = self.model, "messages" if ask.is_chat else "prompt"
        is_text = isinstance(prompt, str) or ask.is_chat
        if is_text and not model.reads_text:
            said = "the checkpoint has no tokenizer; send token ids as the prompt of /v1/completions"
            raise Refusal(400, said, param=param, code="no_tokenizer")
        if ask.is_chat:
            try:
                ids = model.encode_chat(prompt)  # type: ignore[arg-type]
            except Exception as error:  # a template may refuse roles or their order
                raise Refusal(
                    400, f"the conversation cannot be rendered: {error}", param=param, code="template"
                ) from error
        else:
            ids = model.encode_text(prompt) if isinstance(prompt, str) else list(prompt)  # type: ignore[arg-type]
        if not ids:
            raise Refusal(400, "the prompt is empty; it needs at least one token", param=param, code="invalid_value")
        if max(ids) >= model.vocabulary:
            said = f"the prompt holds token id {max(ids)}; allowed: 0 to {model.vocabulary - 1}"
            raise Refusal(400, said, param=param, code="invalid_value")
        total = len(ids) + (ask.decoder.gen_length or 0)
        if model.longest is not None and total > model.longest:
            said = (
                f"the prompt has {len(ids)} tokens and {ask.decoder.gen_length} are to be generated, {total} together; "
                f"allowed: {model.longest}"
            )
            raise Refusal(400, said, param=param, code="context_length_exceeded")
        return ids


class Server(ThreadingHTTPServer):
    """The routes of a service on a port.

    Args:
        service: answers.
        host: address to listen on.
        port: 0 = a free one.
        max_body: bytes of a request.

    Raises:
        OSError: the address cannot be used.
    """

    daemon_threads = True
    block_on_close = False
    #: Connections that the kernel holds until they are accepted.
    request_queue_size = 1024

    def __init__(self, service: Service, host: str, port: int, *, max_body: int = 16 * 2**20) -> None:
        self.service, self.max_body = service, max_body
        super().__init__((host, port), Handler)

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is not worth a traceback; anything else is."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def serve(service: Service, server: Server, *, grace_s: float, say: Callable[[str], None]) -> int:
    """Answer requests until SIGTERM or SIGINT; call it in the main thread, with the model loaded.

    Args:
        service: started.
        server: bound.
        grace_s: seconds that running requests have to end.
        say: tells the user.

    Returns:
        The exit code: 0, or 1 when requests were cut off.
    """
    asked, again = threading.Event(), threading.Event()

    def note(number: int, frame: Any) -> None:
        (again if asked.is_set() else asked).set()

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    threading.Thread(target=server.serve_forever, args=(0.05,), name="accept", daemon=True).start()
    names = ", ".join(service.defaults.names)
    say(f"serving {names} at {server.url}/v1 (stop with Ctrl-C)")
    try:
        while not asked.wait(1.0):
            if not service.is_alive:
                say("the thread that decodes has ended")
                return 1
        say(f"stopping: no new requests, up to {grace_s:g} s for those that run; a second signal ends at once")
        server.shutdown()
        server.server_close()
        if service.finish(grace_s, again):
            return 0
        say("requests were cut off: they took longer than --grace allows, or a second signal came")
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
