r"""Scorers for answers that are one plain number: `math/number` (GSM8K) and `mini_number` (mini-GSM)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from dare_bench.suites.scoring import quantity
from dare_bench.suites.scoring.boxes import answer_part, boxes_from_last
from dare_bench.suites.scoring.registry import Scorer, Verdict, scorer

if TYPE_CHECKING:
    from dare_bench.suites.benchmarks.base import Row

_PHRASE = re.compile(
    r"\bfinal answer\b|\banswer\s{0,2}(?:is|was|would be|will be|should be|=|:)|\banswer to\b[^.\n]{0,80}\bis\b",
    re.IGNORECASE,
)
_AFTER_PHRASE = re.compile(r"[\s:*_]{0,20}(?:the (?:final )?answer is)?[\s:*_]{0,20}", re.IGNORECASE)
_CLAUSE_END = re.compile(r"[.!?;](?=\s|$)|\n")
_STATED = re.compile(r"\s{0,3}(?:\\?[\[(]\s{0,2})?")
_CONTINUES = re.compile(r"\s{0,2}(?:[+*/×÷^=]|-\s?[0-9(]|\\(?:times|cdot|div)\b)")

#: Characters looked at after an answer phrase, an equals sign or four hashes.
_WINDOW = 160


@dataclass(frozen=True)
class Candidate:
    """What was read as the answer.

    Attributes:
        tier: the rule that fired.
        value: the number, or null if the place holds none.
        shown: text for the record.
        reason: why the value is null, or how it was read.
        is_well_formed: a complete box.
    """

    tier: str
    value: Fraction | None
    shown: str
    reason: str
    is_well_formed: bool = False


def from_box(text: str) -> Candidate | None:
    r"""Returns the last non-empty box of an answer, or null.

    It is well formed only if it is also the very last box: `\boxed{3} ... \boxed{}` does not end in a stated answer.
    """
    is_last = True
    for box in boxes_from_last(text):
        if not box.is_empty:
            value, reason = quantity.read_number(box.content)
            shown = box.content if value is None else quantity.show(value)
            return Candidate("box", value, shown, reason, is_last and box.is_well_formed)
        is_last = False
    return None


def from_hashes(text: str) -> Candidate | None:
    """Returns the number directly after the last `####` that has one, or null. `text` went through `plain`."""
    for mark in reversed(list(re.finditer(r"####", text))):
        start = _STATED.match(text, mark.end()).end()  # type: ignore[union-attr]  # the pattern matches the empty string
        match = quantity.QUANTITY.match(text, start, start + _WINDOW)
        if match:
            return _candidate("####", match)
    return None


def from_phrase(text: str) -> Candidate | None:
    """Returns the number stated after the last "answer is", "Answer:" or "final answer", or null.

    In a clause with equals signs it is the number after the last one, else the first number.
    """
    for phrase in reversed(list(_PHRASE.finditer(text))):
        start = _AFTER_PHRASE.match(text, phrase.end()).end()  # type: ignore[union-attr]  # matches the empty string
        window = text[start : start + _WINDOW]
        end = _CLAUSE_END.search(window)
        clause = window[: end.start()] if end else window
        match = quantity.QUANTITY.search(clause.rpartition("=")[2])
        if match:
            return _candidate("answer phrase", match)
    return None


def from_equation(text: str) -> Candidate | None:
    """Returns the result of the last statement that ends with "= x", or null."""
    for equals in reversed(list(re.finditer(r"=", text))):
        start = _STATED.match(text, equals.end()).end()  # type: ignore[union-attr]  # matches the empty string
        match = quantity.QUANTITY.match(text, start, start + _WINDOW)
        if match and not _CONTINUES.match(text, match.end()):
            return _candidate("equation", match)
    return None


def from_last_number(text: str) -> Candidate | None:
    """Returns the last number of a text, or null."""
    last = None
    for match in quantity.QUANTITY.finditer(text):
        last = match
    return None if last is None else _candidate("last number", last)


def _candidate(tier: str, match: re.Match[str]) -> Candidate:
    """Makes the candidate of a match in running text."""
    value = quantity.value_of(match)
    shown = match[0].strip() if value is None else quantity.show(value)
    return Candidate(tier, value, shown, "one number" if value is not None else "a number that has no value")


class _NumberScorer(Scorer):
    """Compares the first candidate, in the order of the tiers, with the gold number."""

    def candidates(self, text: str) -> Iterator[Candidate | None]:
        """Yields the tiers' findings in order; the first that is not null decides."""
        yield from_box(text)

    def score(self, text: str, row: Row) -> Verdict:
        """Grades one answer; see the class for the tiers.

        Args:
            text: decoded answer.
            row: its row; the gold is a plain number.

        Returns:
            The verdict; `no_answer` when no tier finds anything.
        """
        found = next((item for item in self.candidates(answer_part(text)) if item is not None), None)
        if found is None:
            return self.verdict(is_strict=False, is_right=False, extracted=None, detail="no number found")
        gold, gold_reason = quantity.read_number(row.gold)
        if gold is None:
            # Not raised: one odd gold must not end the scoring of the other rows; the record says what happened.
            detail = f"{found.tier}: the gold '{row.gold}' cannot be read ({gold_reason})"
            return self.verdict(is_strict=False, is_right=False, extracted=found.shown, detail=detail)
        is_right = found.value is not None and quantity.same(found.value, gold)
        if found.value is None:
            detail = f"{found.tier}: '{found.shown}' is {found.reason}"
        else:
            form = "" if found.is_well_formed else ", not in a closed box"
            detail = f"{found.tier}: {found.shown} {'equals' if is_right else 'is not'} {quantity.show(gold)}{form}"
        in_form = found.is_well_formed and found.value is not None
        return self.verdict(
            is_strict=is_right and in_form, is_right=is_right, extracted=found.shown, detail=detail, in_form=in_form
        )


@scorer
class MathNumber(_NumberScorer):
    r"""`math/number`: last box, last `####`, answer phrase, last equation, last number; the first found decides.

    `value` is the score of the protocol; `strict` also asks for a complete last box, so the gap shows format damage.
    """

    name = "math/number"
    version = 1
    headline = "value"
    summary = r"plain number: box, ####, answer phrase, equation, last number; strict = complete last \boxed{}"

    def candidates(self, text: str) -> Iterator[Candidate | None]:
        """Yields the findings of the five tiers."""
        yield from_box(text)
        text = quantity.plain(text)
        for tier in (from_hashes, from_phrase, from_equation, from_last_number):
            yield tier(text)


@scorer
class MiniNumber(_NumberScorer):
    r"""`mini_number`: strict = the last `\boxed{...}` holds the gold; value = box, else `####`, else the last number.

    "Right value, wrong form" is a tier of its own, shown beside the score.
    """

    name = "mini_number"
    version = 1
    headline = "strict"
    summary = r"strict = last \boxed{} holds the gold; value = box, else ####, else last number"

    def candidates(self, text: str) -> Iterator[Candidate | None]:
        """Yields the findings of the three tiers."""
        yield from_box(text)
        text = quantity.plain(text)
        yield from_hashes(text)
        yield from_last_number(text)
