"""What `dare-bench serve` answers: bodies of OpenAI's routes, with our costs beside each choice. Imports no torch."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from dare_bench.dare.decoding.generation import Generation
from dare_bench.harness.serve_queue import Row, Ticket
from dare_bench.harness.serve_request import Ask

Decode = Callable[[Sequence[int]], str]


class Reply:
    """The answer to one request, whole or in chunks.

    Args:
        ask: the request.
        ticket: its rows, prompt by prompt, `ask.n` for each.
        model: its name.
        decode: token ids to text.
    """

    def __init__(self, ask: Ask, ticket: Ticket, model: str, decode: Decode) -> None:
        self.ask, self.ticket, self._decode = ask, ticket, decode
        kind = "chat.completion" if ask.is_chat else "text_completion"
        prefix = "chatcmpl" if ask.is_chat else "cmpl"
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._kind = kind
        self._sent = [""] * len(ticket.rows)
        self._closed = [False] * len(ticket.rows)

    def whole(self) -> dict[str, Any]:
        """The body, once all rows are done."""
        choices = []
        for index, row in enumerate(self.ticket.rows):
            assert row.found is not None
            text, reason = self.text(row.found)
            said = {"message": {"role": "assistant", "content": text}} if self.ask.is_chat else {"text": text}
            end = {"finish_reason": reason, "logprobs": None, "dare": self.dare(row.found)}
            choices.append({"index": index, **said, **end})
        return {**self._head, "object": self._kind, "choices": choices, "usage": self.usage()}

    def first(self) -> list[dict[str, Any]]:
        """Chunks that open a stream."""
        if not self.ask.is_chat:
            return []
        role = {"role": "assistant", "content": ""}
        return [self._chunk(index, role, None) for index in range(len(self.ticket.rows))]

    def news(self) -> list[dict[str, Any]]:
        """Chunks for what has come since the last call."""
        chunks = []
        for index, row in enumerate(self.ticket.rows):
            if self._closed[index]:
                continue
            if row.found is None:
                fresh = self._grown(index, self._safe(row))
                chunks += [self._chunk(index, {"content": fresh}, None)] if fresh else []
                continue
            text, reason = self.text(row.found)
            fresh = self._grown(index, text)
            chunks += [self._chunk(index, {"content": fresh}, None)] if fresh else []
            chunks.append({**self._chunk(index, {}, reason, self.dare(row.found))})
            self._closed[index] = True
        return chunks

    def last(self) -> list[dict[str, Any]]:
        """Chunks that close a stream."""
        if not self.ask.with_usage:
            return []
        return [{**self._head, "object": self._chunk_kind, "choices": [], "usage": self.usage()}]

    def text(self, found: Generation) -> tuple[str, str]:
        """The answer up to the first stop text, and why it ended."""
        text = self._decode(found.text_ids)
        cut = self._cut(text)
        return (text, found.finish_reason) if cut is None else (text[:cut], "stop")

    def dare(self, found: Generation) -> dict[str, Any]:
        """Costs of a choice, and what else was asked for."""
        extra: dict[str, Any] = asdict(found.cost)
        if self.ask.seed is not None and self.ask.decoder.draws:
            extra["seed"] = self.ask.seed
        if self.ask.token_ids:
            extra["token_ids"] = found.token_ids
        if self.ask.step_map:
            extra |= {"step_map": found.step_map, "convention": found.convention}
        return extra

    def usage(self) -> dict[str, int]:
        """Tokens of the prompts, each counted once, and of the answers before their stop tokens."""
        rows = self.ticket.rows
        asked = sum(len(row.prompt) for row in rows[:: self.ask.n])
        made = sum(len(row.found.text_ids) for row in rows if row.found is not None)
        return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.ask.is_chat else self._kind

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: str | None, dare: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        said = {"delta": delta} if self.ask.is_chat else {"text": delta.get("content", "")}
        choice = {"index": index, **said, "finish_reason": reason, "logprobs": None}
        return {**self._head, "object": self._chunk_kind, "choices": [choice | ({"dare": dare} if dare else {})]}

    def _safe(self, row: Row) -> str:
        """Text of finished blocks that no later token can change."""
        text = self._decode(row.partial).rstrip("\ufffd")
        cut = self._cut(text)
        if cut is not None:
            return text[:cut]
        held = max((len(stop) - 1 for stop in self.ask.stop), default=0)  # a stop text may have begun
        return text[: len(text) - held] if held else text

    def _grown(self, index: int, text: str) -> str:
        """What is new of a text; nothing while it is not a continuation of what was sent."""
        if not text.startswith(self._sent[index]):
            return ""
        fresh = text[len(self._sent[index]) :]
        self._sent[index] = text
        return fresh

    def _cut(self, text: str) -> int | None:
        places = [place for stop in self.ask.stop if (place := text.find(stop)) >= 0]
        return min(places, default=None)
