r"""Reads the answer part of a decoded text: end tokens, reasoning tags, and `\boxed{...}` in any state it was left.

Everything here is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

#: Tokens that end an answer; diffusion models fill the rest of the canvas with them.
END_TOKENS = ("<|eot_id|>", "<|endoftext|>", "<|im_end|>", "</s>")

#: A longer box is prose, not an answer; the bound also keeps many unclosed boxes linear.
MAX_BOX_CHARS = 500

_END = re.compile("|".join(re.escape(token) for token in END_TOKENS))
# Undamaged first; then a stray dot or space between backslash and word, or no backslash (only before a brace).
_BOX = re.compile(r"(?P<good>\\f?boxed\s{0,3})(?P<brace>\{)?|(?:\\[.\s]{1,3})?\bf?boxed\s{0,3}(?P<bare>\{)")
_TAG = re.compile(r"</[A-Za-z]|<(?:answer|reasoning|think)\b")
_BRACE = re.compile(r"\\[{}\\]|[{}]")
_UNBRACED = re.compile(r"[-+$\\0-9A-Za-z][^\s{}$]{0,40}")


@dataclass(frozen=True)
class Box:
    """One box.

    Attributes:
        content: text inside, stripped.
        is_well_formed: written as a backslash, the word, and a closed pair of braces.
    """

    content: str
    is_well_formed: bool

    @property
    def is_empty(self) -> bool:
        """Whether nothing is stated in it (empty, dots, or only another opening box)."""
        return not any(char.isalnum() for char in re.sub(r"\\?\.?\s?f?boxed", "", self.content))


def before_end(text: str) -> str:
    """Returns the text up to its first end token."""
    end = _END.search(text)
    return text[: end.start()] if end else text


def answer_part(text: str) -> str:
    """Returns what a reader grades: up to the first end token, without a leading `<think>...</think>`.

    Args:
        text: decoded answer, special tokens possibly left in.

    Returns:
        The part of the text to grade.
    """
    body = before_end(text)
    if body.lstrip().startswith("<think>"):
        close = body.find("</think>")
        if close >= 0:
            body = body[close + len("</think>") :]
    return body


def boxes_from_last(text: str) -> Iterator[Box]:
    r"""Yields the boxes of a text, the last one first.

    Tolerates what diffusion models do to a box: no backslash (`boxed{27}`), a stray dot (`\.boxed{18}`), no braces
    (`\boxed 7`), no closing brace before a tag, a line end or the end of the text. Those are not well formed.

    Args:
        text: the answer part of a text.

    Yields:
        Boxes, by descending start; an inner box comes before the one around it.
    """
    found = list(_BOX.finditer(text))
    if not found:
        return
    closing = _matching_braces(text)
    for match in reversed(found):
        if match["brace"] is None and match["bare"] is None:
            follower = _UNBRACED.match(text, match.end())
            if follower:
                yield Box(follower[0].rstrip(".,;:"), is_well_formed=False)
            continue
        start = match.end()
        close = closing.get(start - 1)
        is_closed = close is not None and close - start <= MAX_BOX_CHARS
        content = text[start : close if is_closed else start + MAX_BOX_CHARS]
        tag = _TAG.search(content)
        if tag:
            content, is_closed = content[: tag.start()], False
        if not is_closed:
            content = content.lstrip().split("\n", 1)[0]
        yield Box(content.strip(), is_well_formed=is_closed and match["good"] is not None)


def _matching_braces(text: str) -> dict[int, int]:
    """Returns the position of the closing brace for each opening one that has one; escaped braces do not count."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            opened.append(match.start())
        elif match[0] == "}" and opened:
            closing[opened.pop()] = match.start()
    return closing
