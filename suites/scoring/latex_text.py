r"""Reads and normalises mathematical answers as text; what needs algebra is left to `equivalence`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dare_bench.suites.scoring.boxes import MAX_BOX_CHARS, answer_part, boxes_from_last
from dare_bench.suites.scoring.tags import last_tag

_PHRASE = re.compile(
    r"\b(?:final answer|answer)\s{0,2}(?:(?:is|was|would be|should be|=|:)[\s*:]{0,6}){1,2}(?:the (?:final )?answer is\b)?",
    re.IGNORECASE,
)
_PHRASE_END = re.compile(r"\n|[.!?;](?:\s|$)|\bI hope\b")
_MATH = re.compile(r"\\\[(.{1,300}?)\\\]|\\\((.{1,300}?)\\\)|\$\$?([^$]{1,300})\$", re.DOTALL)
_JOINED = (
    r"\}\s{0,3}(?:\$|\\\)|\\\])?\s{0,3}(?:,|,?\s{0,3}(?:and|or))\s{0,3}"
    r"(?:\$|\\\(|\\\[)?\s{0,3}\\f?boxed\s{0,3}\{\s{0,3}"
)

_EMPTY_BOX = re.compile(r"\\?\.?f?boxed\s?\{[\s.…]{0,20}\}")
_TEXT = re.compile(r"\\(?:text|mbox|textbf|textrm|textit|mathrm|mathbf|operatorname)\s?\{([^{}]{0,200})\}")
_DROPPED = re.compile(r"\\(?:left|right|displaystyle|limits|[bB]igg?[lrm]?|q?quad)(?![A-Za-z])|\\[!,;: ()\[\]]|[$~]")
_SHORT_FRACTION = re.compile(r"\\frac\s?(?:\{([^{}]{1,100})\}|([0-9A-Za-z]))\s?(?:\{([^{}]{1,100})\}|([0-9A-Za-z]))")
_DEGREE = re.compile(r"\^\s?\{?\s?\\circ\s?\}?|\\degree(?![A-Za-z])|°")
_MEMBER = re.compile(r"^[a-z]\\in(?![A-Za-z])")
_APART = re.compile(r"(?<=[0-9])\s+(?=[0-9])")
_LETTER = re.compile(r"^\(([A-Za-z])\)$")
_ZEROS = re.compile(r"(?<![0-9.])([0-9]+)\.0+(?![0-9])")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")


@dataclass(frozen=True)
class Stated:
    """What an answer states, and the rule that found it."""

    rule: str
    text: str


def stated(text: str) -> Stated | None:
    """Returns the final answer of a text: last box, else answer tag, else answer phrase, else last equation's right side.

    Several boxes joined by a comma, "and" or "or" are one list; otherwise the last box decides.

    Args:
        text: decoded answer.

    Returns:
        The answer as LaTeX or text; null when nothing is stated.
    """
    text = answer_part(text)
    found = [box.content for _, box in zip(range(20), boxes_from_last(text), strict=False) if not box.is_empty]
    if found:
        parts = [found[0]]
        for before in found[1:]:
            if not re.search(re.escape(before) + _JOINED + re.escape(parts[0]), text):
                break
            parts.insert(0, before)
        return Stated("box", ", ".join(parts))
    tagged = _EMPTY_BOX.sub("", last_tag(text) or "").strip()
    if tagged and len(tagged) <= MAX_BOX_CHARS:
        return Stated("answer tag", tagged)
    return _from_phrase(text) or _from_equation(text)


def _from_phrase(text: str) -> Stated | None:
    """Returns what follows the last "answer is" or "Final answer:", up to the end of the sentence."""
    for phrase in reversed(list(_PHRASE.finditer(text))):
        window = text[phrase.end() : phrase.end() + MAX_BOX_CHARS].lstrip(" *:\n")
        math = _MATH.match(window)
        if math:
            return Stated("answer phrase", next(filter(None, math.groups())).strip())
        end = _PHRASE_END.search(window)
        said = (window[: end.start()] if end else window).strip(" *.")
        if said:
            return Stated("answer phrase", said)
    return None


def _from_equation(text: str) -> Stated | None:
    """Returns the right side of the last displayed or inline equation."""
    for math in reversed(list(_MATH.finditer(text))):
        _, equals, right = next(filter(None, math.groups())).rpartition("=")
        if equals and right.strip():
            return Stated("equation", right.strip(" .\n"))
    return None


def normalised(answer: str) -> str:
    r"""Returns an answer without what is only typography: spacing, delimiters, `\text`, degree, percent and dollar signs.

    Equal results mean equal answers; unequal ones mean nothing.
    """
    text = (
        answer.replace("{,}", "").replace("\\!", "").replace("\\$", "").replace("\\%", "").replace("%", "").strip(" *")
    )
    text = (
        text.replace("\\dfrac", "\\frac")
        .replace("\\tfrac", "\\frac")
        .replace("\\varnothing", "\\emptyset")
        .replace("\N{MINUS SIGN}", "-")
    )
    text = _DEGREE.sub("", _DROPPED.sub("", text))
    text = _TEXT.sub(r"\1", text)
    text = _SHORT_FRACTION.sub(lambda m: f"\\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", text)
    text = _ZEROS.sub(r"\1", _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text))
    text = re.sub(r"\^\{([0-9A-Za-z])\}", r"^\1", re.sub(r"_\{([0-9]+)\}", r"_\1", text))
    text = _APART.sub(" ", text.strip())  # "3 4" is not 34
    text = _MEMBER.sub("", re.sub(r"(?<![0-9])\s+|\s+(?![0-9\s])", "", text).rstrip("."))
    return _LETTER.sub(r"\1", text)
