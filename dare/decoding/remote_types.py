"""What remote back ends take and give. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, str]
#: Token ids, a conversation, or plain text.
Prompt = Sequence[int] | Sequence[Message] | str
OnFinish = Callable[[int, "RemoteGeneration"], None]


class Unsupported(ValueError):
    """Something that a back end, by its server's interface, cannot do."""


@dataclass(frozen=True)
class Sampling:
    """What is asked for; fields that are null are left out, so that the server's own defaults hold.

    Attributes:
        max_tokens: to generate.
        temperature: 0 = greedy. Some engines ignore it for diffusion models (SGLang's LowConfidence).
        top_p, top_k: filters of the distribution.
        stop: texts that end an answer.
        stop_token_ids: tokens that end an answer; OpenAI routes know none.
        extra: further keys as the server calls them; a server that does not know one refuses with 400. SGLang: put into
            `sampling_params`; others: into the body (our own server: ``{"decoder": {...}}``).
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RemoteGeneration:
    """One answer of a server.

    Attributes:
        text: the answer; while streaming, all of it so far.
        token_ids: of the answer, as sampled; null when the server gives text only.
        finish_reason: ``stop``, ``length`` or what else the server says; null while streaming.
        prompt_tokens, completion_tokens: as the server counts them; null when it does not.
        nfe: forwards; null when the server does not report them.
        step_map: null when the server does not report it.
        convention: meaning of `step_map`.
        stop_token: id of the token that ended the answer; null when the server does not tell it.
        latency_s: from sending the request to its answer, retries and waiting on the server included. Prompts that
            travelled in one request share it.
    """

    text: str
    token_ids: list[int] | None
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    nfe: int | None = None
    step_map: list[int] | None = None
    convention: str | None = None
    stop_token: int | None = None
    latency_s: float = 0.0
