"""Requests that wait for a model, and the one thread that decodes them. Imports no torch: the model comes from outside.

Rows (one prompt and one seed each) with the same decoder settings share a session and with it the model's forwards. All
sessions together hold at most `slots` rows; rows enter in the order of their requests.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.generation import Generation
from dare_bench.dare.families.registry import UnknownName
from dare_bench.harness.serve_errors import Refusal

#: Sessions without rows that are kept for the next request with their settings; each holds buffers of its own.
IDLE_SESSIONS = 2


class Session(Protocol):
    """What the thread drives: `dare.decoding.engine.Session`, or something like it."""

    def add(self, prompt: Sequence[int], seed: int, key: Hashable) -> None:
        """Queue a prompt."""

    def step(self) -> Iterable[tuple[Hashable, Generation]]:
        """Go on; give what is finished."""

    def cancel(self, key: Hashable) -> bool:
        """Drop a prompt."""


@dataclass(eq=False)
class Row:
    """One prompt of a request.

    Attributes:
        prompt: token ids.
        seed: of the engine.
        found: the answer, once it is there.
        partial: tokens of finished blocks, where the request wants them.
    """

    prompt: list[int]
    seed: int
    found: Generation | None = None
    partial: list[int] = field(default_factory=list)


class Ticket:
    """A request: its rows, and what became of them.

    Args:
        rows: at least one.
        decoder: settings, the same for all rows.
        progress: whether finished blocks are told before the end.
    """

    def __init__(self, rows: Sequence[Row], decoder: DecoderConfig, *, progress: bool = False) -> None:
        self.rows, self.decoder, self.progress = list(rows), decoder, progress
        self.error: Refusal | None = None
        self.cancelled = False
        self._changed = threading.Condition()
        self._version = self._seen = 0

    @property
    def done(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.error is not None or all(row.found is not None for row in self.rows)

    def wait(self, timeout_s: float) -> bool:
        """Wait for news since the last call; whether there are any."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > self._seen or self.done, timeout_s)
            fresh = self._version > self._seen or self.done
            self._seen = self._version
            return fresh

    def tell(self, error: Refusal | None = None) -> None:
        """Wake who waits; the first error stays."""
        with self._changed:
            self.error = self.error or error
            self._version += 1
            self._changed.notify_all()


class Scheduler:
    """The queue and its thread.

    Args:
        slots: rows decoded at once.
        max_queue: rows that may wait; more are refused with 503.
    """

    def __init__(self, slots: int, max_queue: int) -> None:
        self.slots, self.max_queue = slots, max_queue
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Ticket, Row]] = deque()
        self._running: dict[Row, tuple[Ticket, str]] = {}
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._stopped = False
        self._logged: set[str] = set()
        self._open: Callable[[DecoderConfig], Session] | None = None

    @property
    def load(self) -> dict[str, int]:
        """Rows that wait and rows that run."""
        with self._changed:
            return {"waiting": len(self._waiting), "running": len(self._running)}

    def submit(self, ticket: Ticket) -> None:
        """Queue a request's rows.

        Raises:
            Refusal: 503 when they do not fit now, 400 when they never will.
        """
        count = len(ticket.rows)
        if count > self.max_queue:
            raise Refusal(
                400, f"the request asks for {count} answers; allowed: at most {self.max_queue}", code="too_many"
            )
        with self._changed:
            if self._stopped:
                raise Refusal(503, "the server is shutting down", code="shutting_down")
            if len(self._waiting) + count > self.max_queue:
                said = f"{len(self._waiting)} answers are waiting, and at most {self.max_queue} may; try again later"
                raise Refusal(503, said, code="queue_full", headers={"Retry-After": "1"})
            self._waiting.extend((ticket, row) for row in ticket.rows)
            self._changed.notify_all()

    def cancel(self, ticket: Ticket) -> None:
        """Forget a request: nobody waits for it any more."""
        with self._changed:
            ticket.cancelled = True
            self._waiting = deque(item for item in self._waiting if item[0] is not ticket)
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread after its next forward; what is not finished is refused."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def run(self, open_session: Callable[[DecoderConfig], Session]) -> None:
        """Decode until `stop`; everything that touches the model happens in the thread that calls this.

        Args:
            open_session: makes a session of `slots` rows; ValueError and UnknownName are the requester's mistakes.
        """
        self._open = open_session
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._running or self._stopped)
                if self._stopped:
                    break
                dropped = [(row, key) for row, (ticket, key) in self._running.items() if ticket.cancelled]
                room = self.slots - len(self._running) + len(dropped)
                entering = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
                for row, _ in dropped:
                    del self._running[row]
            for row, key in dropped:
                self._sessions[key].cancel(row)
            for ticket, row in entering:
                self._enter(ticket, row)
            for key in dict.fromkeys(key for _, key in list(self._running.values())):
                self._step(key)
            self._forget_idle()
        refusal = Refusal(503, "the server was shut down before the answer was ready", code="shutting_down")
        with self._changed:
            tickets = {ticket for ticket, _ in [*self._waiting, *self._running.values()]}
            self._waiting.clear()
            self._running.clear()
        for ticket in tickets:
            ticket.tell(refusal)

    def _enter(self, ticket: Ticket, row: Row) -> None:
        if ticket.error is not None:
            return
        key = json.dumps(ticket.decoder.determinants(), sort_keys=True, default=str)
        try:
            if key not in self._sessions:
                assert self._open is not None
                self._sessions[key] = self._open(ticket.decoder)
            self._sessions.move_to_end(key)
            self._sessions[key].add(row.prompt, row.seed, row)
        except Exception as error:
            self._fail([ticket], error)
            return
        with self._changed:
            self._running[row] = (ticket, key)

    def _step(self, key: str) -> None:
        """One step of a session; when it fails, its requests do, and the others go on."""
        session = self._sessions[key]
        try:
            finished = list(session.step())
            partial = getattr(session, "finished_blocks", None)
            news = [
                (row, partial(row))
                for row, (ticket, where) in self._running.items()
                if where == key and ticket.progress and partial is not None
            ]
        except Exception as error:
            del self._sessions[key]
            with self._changed:
                rows = {row: ticket for row, (ticket, where) in self._running.items() if where == key}
                for row in rows:
                    del self._running[row]
            self._fail(list(dict.fromkeys(rows.values())), error)
            return
        for row, tokens in news:
            if len(tokens) > len(row.partial):
                row.partial = tokens
                self._running[row][0].tell()
        for row, generation in finished:
            with self._changed:
                entry = self._running.pop(row, None)
            if entry is not None:
                row.found = generation
                entry[0].tell()

    def _fail(self, tickets: Sequence[Ticket], error: Exception) -> None:
        if isinstance(error, ValueError | UnknownName):
            refusal = Refusal(400, str(error.args[0] if error.args else error), code="invalid_decoder")
        else:
            if repr(error) not in self._logged:  # a crowd meets the same error: its traceback is printed once
                self._logged.add(repr(error))
                traceback.print_exception(error, file=sys.stderr)
            said = f"decoding failed: {type(error).__name__}: {error}; see the server's log"
            refusal = Refusal(500, said, code="decoding_failed")
        for ticket in tickets:
            ticket.tell(refusal)

    def _forget_idle(self) -> None:
        busy = {key for _, key in self._running.values()}
        idle = [key for key in self._sessions if key not in busy]
        for key in idle[: max(len(idle) - IDLE_SESSIONS, 0)]:
            del self._sessions[key]
