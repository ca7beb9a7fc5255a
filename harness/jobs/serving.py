"""The model behind `dare-bench serve`: loading, text to tokens and back, sessions of the family's engine."""

from __future__ import annotations

import importlib
import itertools
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from dare_bench.dare.decoding import dispatch, request
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.generation import Generation
from dare_bench.dare.families.base import DiffusionLM


class ServedModel:
    """A loaded model.

    Args:
        folder: checkpoint.
        family: its family.
        device: torch device.
        dtype: of the weights; ``auto`` = float32 on the CPU, else as stored.
        slots: rows decoded at once.
    """

    def __init__(self, folder: str, family: str, *, device: str, dtype: str, slots: int) -> None:
        from dare_bench.dare.families.loading import load
        from dare_bench.dare.families.registry import get_family

        # Now, not at the first request: what is wrong with an installation must show at the start.
        importlib.import_module(f"dare_bench.dare.decoding.{get_family(family).engine}")
        kind = "float32" if dtype == "auto" and device == "cpu" else dtype
        self.lm: DiffusionLM = load(folder, family=family, device=device, dtype=kind)
        self.slots = slots
        # A fast tokenizer changes its own padding state in every call: one thread at a time.
        self._lock = threading.Lock()

    @property
    def longest(self) -> int | None:
        """Tokens that prompt and answer may have together; null = the network names no limit."""
        config = self.lm.model.config
        text = getattr(config, "text_config", None) or config
        return getattr(text, "max_position_embeddings", None)

    @property
    def vocabulary(self) -> int:
        """Token ids are below this number."""
        return self.lm.vocab_size

    @property
    def reads_text(self) -> bool:
        """Whether the checkpoint has a tokenizer."""
        return self.lm.chat is not None

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation, up to and including the opened assistant turn."""
        with self._lock:
            return self.lm.encode_chat(messages)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of plain text, nothing added."""
        assert self.lm.chat is not None
        with self._lock:
            return self.lm.chat.encode_text(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens; empty without a tokenizer."""
        if self.lm.chat is None:
            return ""
        with self._lock:
            return self.lm.decode(ids)

    def open_session(self, decoder: DecoderConfig) -> EngineSession | BatchSession:
        """A stream of prompts under one decoder.

        Raises:
            ValueError, LookupError: settings that do not fit the model.
        """
        request.check([], decoder, [])
        if self.lm.family.engine == "engine":
            return EngineSession(self.lm, decoder, self.slots)
        return BatchSession(self.lm, decoder)


class EngineSession:
    """A session of the masked engine: rows enter and leave while others go on.

    Args:
        lm: model.
        decoder: settings.
        slots: rows decoded at once.
    """

    def __init__(self, lm: DiffusionLM, decoder: DecoderConfig, slots: int) -> None:
        from dare_bench.dare.decoding.engine import Session

        self._session = Session(lm, decoder, slots)
        self._ends = lm.stop_token_ids | {lm.mask_token_id}

    def add(self, prompt: Sequence[int], seed: int, key: Hashable) -> None:
        """Queue a prompt."""
        self._session.add(prompt, seed, key)

    def step(self) -> list[tuple[Hashable, Generation]]:
        """One forward of every row."""
        return self._session.step()

    def cancel(self, key: Hashable) -> bool:
        """Drop a prompt; whether it was there."""
        return self._session.cancel(key)

    def finished_blocks(self, key: Hashable) -> list[int]:
        """Tokens of the blocks that will not change any more, up to the first stop token."""
        slots = self._session.slots
        if key not in slots.keys:
            return []
        slot = slots.keys.index(key)
        ids: list[int] = slots.ids[slot, int(slots.prompt[slot]) : int(slots.start[slot])].tolist()
        return list(itertools.takewhile(lambda token: token not in self._ends, ids))


class BatchSession:
    """Any other engine: what waits is decoded as one batch.

    Args:
        lm: model.
        decoder: settings.
    """

    def __init__(self, lm: DiffusionLM, decoder: DecoderConfig) -> None:
        self._lm, self._decoder = lm, decoder
        self._waiting: dict[Hashable, tuple[Sequence[int], int]] = {}

    def add(self, prompt: Sequence[int], seed: int, key: Hashable) -> None:
        """Queue a prompt."""
        request.check([prompt], self._decoder, [seed])
        self._waiting[key] = (prompt, seed)

    def step(self) -> list[tuple[Hashable, Generation]]:
        """Decode everything that waits."""
        batch, self._waiting = self._waiting, {}
        if not batch:
            return []
        prompts = [prompt for prompt, _ in batch.values()]
        seeds = [seed for _, seed in batch.values()]
        found: list[Any] = dispatch.generate(self._lm, prompts, self._decoder, seeds, batch_size=len(batch))
        return list(zip(batch, found, strict=True))

    def cancel(self, key: Hashable) -> bool:
        """Drop a prompt; whether it was there."""
        return self._waiting.pop(key, None) is not None
