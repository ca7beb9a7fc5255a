"""What every remote back end does: send prompts concurrently, repeat what failed, put answers in order. No torch."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from dare_bench.dare.decoding.remote_http import Client, Gate
from dare_bench.dare.decoding.remote_reading import Failure
from dare_bench.dare.decoding.remote_types import Message, OnFinish, Prompt, RemoteGeneration, Sampling, Unsupported


class Backend(ABC):
    """One server; subclasses know its routes.

    Args:
        base: URL of the server.
        model: name in requests; null = what ``/v1/models`` lists first, where the route wants one.
        concurrency: requests in flight.
        batch_size: prompts per request, for servers that take several.
        encode: turns a conversation into token ids, for routes that take ids only.
        options: of `Client` (timeout_s, connect_s, retry, headers).

    Raises:
        ValueError: for a base that is no URL, or a number below 1.
    """

    #: Name in `connect`.
    kind: ClassVar[str]
    #: Route that answers 2xx when the server can generate.
    health: ClassVar[str] = "/health"
    #: Whether one request takes several prompts.
    takes_many: ClassVar[bool] = False

    def __init__(
        self,
        base: str,
        *,
        model: str | None = None,
        concurrency: int = 16,
        batch_size: int = 32,
        encode: Callable[[Sequence[Message]], list[int]] | None = None,
        **options: Any,
    ) -> None:
        if concurrency < 1 or batch_size < 1:
            raise ValueError(f"concurrency {concurrency!r}, batch_size {batch_size!r}; allowed: at least 1")
        self.client = Client(base, connections=concurrency, **options)
        self.concurrency = concurrency
        self.batch_size = batch_size if self.takes_many else 1
        self.encode = encode
        self._model = model
        self._in_flight = Gate()

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        seeds: Sequence[int] | None = None,
        on_finish: OnFinish | None = None,
    ) -> list[RemoteGeneration]:
        """Answer prompts.

        Args:
            prompts: token ids, conversations or texts, as the route takes them.
            sampling: the same for all.
            seeds: one per prompt; null = the server's own.
            on_finish: called with (index, answer) as answers arrive, from one thread at a time.

        Returns:
            Answers in the order of `prompts`.

        Raises:
            RemoteError: the server refuses a request, or does not answer it in any attempt; what was not sent is not.
            Unsupported: a kind of prompt, or a setting, that the route has no place for.
            ValueError: seeds that do not match the prompts, or an empty prompt.
        """
        if seeds is not None and len(seeds) != len(prompts):
            raise ValueError(f"{len(seeds)} seeds for {len(prompts)} prompts; give one per prompt")
        ready = [self.prepare(prompt, index) for index, prompt in enumerate(prompts)]
        groups = [range(i, min(i + self.batch_size, len(ready))) for i in range(0, len(ready), self.batch_size)]
        bodies = [
            self.body([ready[i] for i in group], sampling, None if seeds is None else [seeds[i] for i in group])
            for group in groups
        ]
        found: list[RemoteGeneration | None] = [None] * len(ready)
        lock, failed = threading.Lock(), threading.Event()

        def one(group: range, body: dict[str, Any]) -> None:
            if failed.is_set():
                return
            try:
                with self._in_flight:
                    answers = self._ask(body, len(group), failed)
                with lock:
                    for index, answer in zip(group, answers, strict=True):
                        found[index] = answer
                        if on_finish is not None:
                            on_finish(index, answer)
            except BaseException:
                failed.set()
                raise

        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="remote") as pool:
            jobs = [pool.submit(one, group, body) for group, body in zip(groups, bodies, strict=True)]
            try:
                wait(jobs, return_when=FIRST_EXCEPTION)
            except BaseException:  # interrupted: send nothing more
                failed.set()
                raise
        for job in jobs:
            job.result()
        return [answer for answer in found if answer is not None]

    def stream(self, prompt: Prompt, sampling: Sampling, *, seed: int | None = None) -> Iterator[RemoteGeneration]:
        """Answer one prompt as it is decoded.

        Args:
            prompt: as in `generate`.
            sampling: as in `generate`.
            seed: null = the server's own.

        Yields:
            The answer so far, text cumulative; the last one has a finish reason.

        Raises:
            RemoteError, Unsupported, ValueError: as in `generate`; also for a stream that ends before its end. It is not
                repeated: what was yielded cannot be taken back.
        """
        body = self.body([self.prepare(prompt, 0)], sampling, None if seed is None else [seed])
        started, last = time.monotonic(), None
        with self._in_flight:
            for event in self.client.events(self.route, self.fresh(self.streaming(body))):
                try:
                    last = self.grow(last, event)
                except Failure as failure:
                    raise self.client.error(self.route, failure, 1) from failure
                last = replace(last, latency_s=time.monotonic() - started)
                yield last
        if last is None or last.finish_reason is None:
            failure = Failure("the stream ended without a finish reason")
            raise self.client.error(self.route, failure, 1)

    def wait_ready(self, timeout_s: float, *, every_s: float = 0.5) -> None:
        """Wait until the server says that it can generate.

        Args:
            timeout_s: in all; a large model loads for minutes.
            every_s: between two looks.

        Raises:
            RemoteError: it does not in time; the message holds what was wrong at last.
        """
        until = time.monotonic() + timeout_s
        while True:
            try:
                self.client.probe(self.health, min(10.0, max(until - time.monotonic(), 0.1)))
                return
            except Failure as failure:
                if time.monotonic() + every_s > until:
                    what = f"not ready within {timeout_s:g} s: {failure.what}"
                    given_up = Failure(what, status=failure.status, body=failure.body)
                    raise self.client.error(self.health, given_up, 1) from failure
            time.sleep(every_s)

    def is_healthy(self, timeout_s: float = 5.0) -> bool:
        """Whether the server answers its health route now."""
        try:
            self.client.probe(self.health, timeout_s)
        except Failure:
            return False
        return True

    @property
    def model(self) -> str:
        """The model's name in requests."""
        if self._model is None:
            listed = self.client.get("/v1/models")
            names = [item["id"] for item in (listed or {}).get("data", []) if isinstance(item, dict) and "id" in item]
            if not names:
                raise self.client.error("/v1/models", Failure("no model is listed"), 1)
            self._model = str(names[0])
        return self._model

    def update_weights_from_disk(self, folder: str, *, version: str | None = None) -> None:
        """Make the server load other weights of the same architecture from a folder that it can read.

        Requests of this object in flight are waited for; the server forgets cached keys and values of the old weights.

        Args:
            folder: checkpoint, as a path on the server's machine.
            version: label of the weights, where the server keeps one.

        Raises:
            Unsupported: its server has no such route.
            RemoteError: the server did not load them.
        """
        raise Unsupported(f"{self.kind}: the server has no route that loads weights from a folder; {self.instead}")

    def update_weights_from_tensors(self, tensors: Sequence[str], *, load_format: str | None = None) -> None:
        """Send weights to the server.

        Args:
            tensors: serialised named tensors in base64 as the server's own library writes them, one text per rank.
            load_format: how they were packed; null = plain.

        Raises:
            Unsupported, RemoteError: as in `update_weights_from_disk`.
        """
        raise Unsupported(f"{self.kind}: the server has no route that takes serialised tensors; {self.instead}")

    #: What to do where weights cannot be updated.
    instead: ClassVar[str] = "restart it with the new checkpoint"

    @contextmanager
    def quiet(self, before: str, after: str) -> Iterator[None]:
        """No request of this object in flight, and the server paused between two routes; it always goes on afterwards."""
        self._in_flight.close()
        try:
            self.client.post(before, {})
            try:
                yield
            finally:
                self.client.post(after, {})
        finally:
            self._in_flight.open()

    @property
    @abstractmethod
    def route(self) -> str:
        """Where requests go."""

    @abstractmethod
    def prepare(self, prompt: Prompt, index: int) -> Any:
        """The prompt as the route takes it; `index` is for messages.

        Raises:
            Unsupported, ValueError: see `generate`.
        """

    @abstractmethod
    def body(self, prompts: Sequence[Any], sampling: Sampling, seeds: Sequence[int] | None) -> dict[str, Any]:
        """The request for prepared prompts."""

    def fresh(self, body: dict[str, Any]) -> dict[str, Any]:
        """The request as one attempt sends it."""
        return body

    def streaming(self, body: dict[str, Any]) -> dict[str, Any]:
        """The request that asks for a stream."""
        return {**body, "stream": True}

    @abstractmethod
    def read(self, answer: Any, body: Mapping[str, Any], count: int) -> list[RemoteGeneration]:
        """Answers in the order of the request.

        Raises:
            Failure: the answer is not what the route promises.
        """

    @abstractmethod
    def grow(self, last: RemoteGeneration | None, event: Any) -> RemoteGeneration:
        """The answer so far, after one more event of a stream.

        Raises:
            Failure: the event is an error.
        """

    def _ask(self, body: dict[str, Any], count: int, given_up: threading.Event) -> list[RemoteGeneration]:
        started = time.monotonic()

        def attempt() -> list[RemoteGeneration]:
            sent = self.fresh(body)
            return self.read(self.client.once(self.route, sent), sent, count)

        answers = self.client.repeat(self.route, attempt, given_up)
        return [replace(answer, latency_s=time.monotonic() - started) for answer in answers]
