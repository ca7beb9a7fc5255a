"""Prompts of requests: conversations, texts and token ids, checked. Imports no torch."""

from __future__ import annotations

from typing import Any

from dare_bench.harness.errors import shorten
from dare_bench.harness.serve_errors import Refusal

#: A conversation, a text, or token ids.
Prompt = list[dict[str, str]] | str | list[int]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def conversation(value: Any) -> list[dict[str, str]]:
    """Messages of a chat request, contents as plain text.

    Raises:
        Refusal: 400.
    """
    if not isinstance(value, list) or not value:
        raise _refused("messages", value, "a list of at least one message {role, content}")
    return [_message(item, f"messages[{index}]") for index, item in enumerate(value)]


def prompts(value: Any) -> list[Prompt]:
    """Prompts of a completion request.

    Raises:
        Refusal: 400.
    """
    if isinstance(value, str) or _is_ids(value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise _refused("prompt", value, "a text, a list of texts, token ids, or a list of lists of token ids")
    for index, item in enumerate(value):
        if isinstance(item, str):
            _check_text(item, f"prompt[{index}]")
        elif not _is_ids(item):
            raise _refused(f"prompt[{index}]", item, "a text, or token ids (whole numbers of 0 or more)")
    if len({isinstance(item, str) for item in value}) > 1:
        raise _refused("prompt", value, "texts or token ids, not both in one request")
    return value


def _message(item: Any, where: str) -> dict[str, str]:
    if not isinstance(item, dict):
        raise _refused(where, item, "an object with role and content")
    given = {key for key, value in item.items() if value is not None}
    if unknown := sorted(given - {"role", "content", "name"}):
        raise _refused(f"{where}.{unknown[0]}", item[unknown[0]], "role and content")
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _refused(f"{where}.role", role, ", ".join(_ROLES))
    content = item.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))
    if not isinstance(content, str):
        raise _refused(f"{where}.content", content, "a text, or a list of parts {type: text, text}")
    _check_text(content, f"{where}.content")
    return {"role": _ROLES[role], "content": content}


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise _refused(where, part, "parts of the type text; the model reads nothing else")
    return part["text"]


def _check_text(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can hold half of a surrogate pair
        raise _refused(where, text, "text of whole characters") from error


def _is_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value)
    )


def _refused(param: str, value: Any, allowed: str) -> Refusal:
    said = f"{param} is {shorten(value)}; allowed: {allowed}"
    return Refusal(400, said, param=param.partition("[")[0], code="invalid_value")
