"""Prompts as chat messages, and the hash that proves two runs saw the same ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from dare_bench.suites.errors import SuiteError

#: A chat message: ``{"role": "system" | "user" | "assistant", "content": text}``.
Message = dict[str, str]

PLACEHOLDER = "{question}"


def fill(template: str, question: str) -> str:
    r"""Puts a question into a template.

    Not `str.format`: templates and questions hold braces (`\boxed{}`), and nothing in a question may be interpreted.

    Args:
        template: text with exactly one ``{question}``.
        question: the question, inserted as it is.

    Returns:
        The user turn.

    Raises:
        SuiteError: the template has not exactly one place for the question.
    """
    if template.count(PLACEHOLDER) != 1:
        raise SuiteError(f"template {template!r} must hold {PLACEHOLDER} exactly once")
    return template.replace(PLACEHOLDER, question)


def conversation(
    template: str, question: str, *, system: str | None = None, shots: Sequence[tuple[str, str]] = ()
) -> list[Message]:
    """Builds the messages of one prompt.

    Args:
        template: text with ``{question}``, for the question and for every shot.
        question: the question to be answered.
        system: system prompt; null = none (not an empty one).
        shots: (question, answer) pairs, each shown as a user and an assistant turn, in order.

    Returns:
        Messages that end with a user turn.
    """
    messages = [] if system is None else [{"role": "system", "content": system}]
    for shot_question, shot_answer in shots:
        messages.append({"role": "user", "content": fill(template, shot_question)})
        messages.append({"role": "assistant", "content": shot_answer})
    messages.append({"role": "user", "content": fill(template, question)})
    return messages


def prompt_hash(prompts: Iterable[Any]) -> str:
    """Returns the hash of the prompts of all samples, in order: the `prompt` field of the hard key.

    Args:
        prompts: rendered texts or message lists. Every character counts, a trailing space too.

    Returns:
        64 hex characters of sha256 over canonical JSON (sorted keys, UTF-8, no white space).

    """
    digest = hashlib.sha256()
    for prompt in prompts:
        text = json.dumps(prompt, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        digest.update(text.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
