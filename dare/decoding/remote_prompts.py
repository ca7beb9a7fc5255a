"""Prompts as a route takes them, or an error that says which form it wants. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dare_bench.dare.decoding.remote_types import Message, Prompt, Unsupported


def as_ids(prompt: Prompt, index: int, encode: Callable[[Sequence[Message]], list[int]] | None, kind: str) -> list[int]:
    """Token ids of a prompt.

    Args:
        prompt: token ids, or a conversation when `encode` is given.
        index: of the prompt, for messages.
        encode: turns a conversation into token ids.
        kind: of the back end, for messages.

    Raises:
        Unsupported: a conversation without `encode`.
        ValueError: an empty prompt, or something that is no prompt.
    """
    if is_conversation(prompt):
        if encode is None:
            raise Unsupported(
                f"{kind}: prompt {index} is a conversation, its route takes token ids; give encode=lm.encode_chat, or "
                "use the kind 'chat'"
            )
        prompt = encode(prompt)  # type: ignore[arg-type]
    ids = list(prompt)
    if not ids:
        raise ValueError(f"prompt {index} is empty; a prompt needs at least one token")
    wrong = next((item for item in ids if isinstance(item, bool) or not hasattr(item, "__index__")), None)
    if wrong is not None:
        raise ValueError(f"prompt {index} holds {wrong!r}; allowed: token ids, or messages with role and content")
    return [item.__index__() for item in ids]  # type: ignore[union-attr]


def as_messages(prompt: Prompt, index: int, kind: str) -> list[dict[str, Any]]:
    """Messages of a conversation.

    Raises:
        Unsupported: for token ids or text.
        ValueError: an empty conversation.
    """
    if not is_conversation(prompt):
        if not isinstance(prompt, str) and not len(prompt):
            raise ValueError(f"prompt {index} is empty; a conversation needs at least one message")
        raise Unsupported(
            f"{kind}: prompt {index} is no conversation, its route takes messages with role and content; use the kind "
            "'sglang', 'lmdeploy', 'vllm' or 'dare-bench' for token ids"
        )
    return [dict(message) for message in prompt]  # type: ignore[arg-type]


def is_conversation(prompt: Prompt) -> bool:
    """Whether a prompt is a list of messages."""
    return not isinstance(prompt, str) and len(prompt) > 0 and all(isinstance(item, Mapping) for item in prompt)
