"""Text of unknown origin made safe and visible: model outputs are hostile input to a page."""

from __future__ import annotations

import re
import unicodedata

from markupsafe import Markup, escape

#: Characters that are not seen or that reorder what is seen: controls (all but newline and tab), bidirectional marks,
#: zero-width characters, line and paragraph separators, lone surrogates, interlinear and tag characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
#: Longest run of combining marks that is left alone; more only hide the text around them.
_MARKS = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_STACKED = re.compile(f"({_MARKS}{{4}}){_MARKS}+")


def _symbol(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return f"\u27e6U+{code:04X}\u27e7"


def visible(text: str) -> str:
    """Replace characters that hide or reorder text by visible symbols.

    Args:
        text: any string, lone surrogates included.

    Returns:
        A string that encodes to UTF-8 and shows what it holds: ``\\x00`` as ``␀``, U+202E as ``⟦U+202E⟧``.
        Newlines and tabs stay.
    """
    return _STACKED.sub("\\1\u27e6+marks\u27e7", _HIDDEN.sub(_symbol, text))


def safe(text: str) -> Markup:
    """Make text visible and escape it for HTML.

    Args:
        text: any string.

    Returns:
        Markup without an active character.
    """
    return escape(visible(text))


def finalize(value: object) -> object:
    """Jinja hook: every string a template prints passes through `visible` before it is escaped."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(value)


def clip(text: str, limit: int) -> tuple[str, int]:
    """Cut a long text for display.

    A character can take 24 bytes on the page (a bidirectional mark becomes a symbol), so the bytes are bounded too.

    Args:
        text: any string.
        limit: most characters kept; what is kept takes at most twice as many bytes on the page.

    Returns:
        (kept text, number of characters left out).
    """
    kept = text[:limit]
    while (size := len(safe(kept).encode("utf-8"))) > 2 * limit:
        kept = kept[: min(len(kept) - 1, len(kept) * 2 * limit // size)]
    return kept, len(text) - len(kept)


def slug(text: str) -> str:
    """Lower-case ASCII letters, digits and dashes of a name, for file names and element ids.

    Args:
        text: a name, for example ``tiny-sdar/sft/mini_gsm``.

    Returns:
        At most 60 characters matching ``[a-z0-9-]+``; ``x`` when nothing is left.
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:60].strip("-") or "x"
