"""Reads `<answer>...</answer>`, the form that rewards of reasoning tasks ask for. Linear in the length of the text."""

from __future__ import annotations

from dare_bench.suites.scoring.boxes import boxes_from_last

OPEN, CLOSE = "<answer>", "</answer>"


def last_tag(text: str) -> str | None:
    """Returns the content of the last closed answer tag, stripped, or null."""
    found = _place(text)
    return None if found is None else text[found[0] : found[1]].strip()


def last_box_or_tag(text: str) -> str | None:
    r"""Returns the last stated answer: a `\boxed{...}` or an answer tag, whichever ends later; a box in a tag counts.

    Args:
        text: the answer part of a text.

    Returns:
        The content, stripped; null when there is neither.
    """
    found = _place(text)
    if found is None:
        return _last_box(text)
    inside, behind = text[found[0] : found[1]], text[found[1] + len(CLOSE) :]
    stated = _last_box(behind)
    stated = _last_box(inside) if stated is None else stated
    return inside.strip() if stated is None else stated


def _last_box(text: str) -> str | None:
    """Returns the content of the last box that states something, or null."""
    return next((box.content for box in boxes_from_last(text) if not box.is_empty), None)


def _place(text: str) -> tuple[int, int] | None:
    """Returns start and end of the last closed tag's content, or null."""
    close = text.rfind(CLOSE)
    start = text.rfind(OPEN, 0, close) if close >= 0 else -1
    return None if start < 0 else (start + len(OPEN), close)
