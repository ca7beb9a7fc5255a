r"""Scorers for answers that are an option letter: `mc/letter` (all forms) and `mini_letter` (box, else last letter)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dare_bench.suites.scoring.boxes import answer_part, boxes_from_last
from dare_bench.suites.scoring.registry import Scorer, Verdict, scorer

if TYPE_CHECKING:
    from dare_bench.suites.benchmarks.base import Row

DEFAULT_LETTERS = "ABCD"

_WRAP = r"(?:\\boxed\s?\{\s?)?(?:\\text(?:bf)?\s?\{)?[*$(\[\"'`]{0,4}"
_FILLER = r"(?:(?!not\b)[a-z']{2,12}\s){0,4}"
# Words that may follow the letter A when it is a letter; before any other lower-case word it is the article.
_NOT_ARTICLE = (
    r"(?!\s(?!(?:because|since|as|and|or|is|was|which|that|for|due|not|with|but|while|so|then|given|here|would|must)\b)"
    r"[a-z])"
)
_STANDALONE = rf"(?<![0-9A-Za-z_'’])(?P<letter>%s)(?![0-9A-Za-z_'’]){_NOT_ARTICLE}"
_LOWER = r"(?<=[(*\"'`])(?P<lower>%s)(?=[)*\"'`])|(?<![0-9A-Za-z_'’])(?P<bare>%s)(?=[.)]?\s{0,2}$)"
_NEGATION = re.compile(
    r"(?:\bnot|n't|n’t|\bneither|\bnor|\bexclude|\bnever|不是|不选)\s{0,2}(?:option\s)?[(*\"'`]{0,3}$", re.IGNORECASE
)
_BOXED_LETTER = re.compile(r"(?:\\text(?:bf)?|\\mathrm|\\mathbf)?\s?[{(*$]{0,4}\s?([A-Za-z])\s?[.)}*$]{0,4}")

_REQUESTED = (
    rf"\banswer\s?(?:option|choice)?\s?(?:is|:)\s?(?:[:：]\s?)?{_WRAP}{_FILLER}(?:option\s|choice\s)?{_WRAP}",
)
_STATEMENTS = (
    rf"\b(?:it|that)(?:['’]s|\sis)\s(?:option\s|choice\s)?{_WRAP}",
    rf"\b(?:choose|pick|select|go\swith|correct\s(?:option|choice)\s(?:is|:))\s?(?:option\s|choice\s)?{_WRAP}",
    rf"\b(?:option|choice)\s{_WRAP}",
    rf"(?:答案|选项|选择|应该选|正确的是|选)\s?(?:应该)?\s?[是为选：:]?\s?(?:选项)?\s?{_WRAP}",
)


class _Patterns:
    """The compiled patterns for one set of letters."""

    def __init__(self, letters: str) -> None:
        upper, lower = f"[{letters}]", f"[{letters.lower()}]"
        letter = _STANDALONE % upper
        either = f"(?:{letter}|{_LOWER % (lower, lower)})"
        # "the answer is" is often written in any case; the letter itself keeps its case.
        self.requested = [re.compile(f"(?i:{prefix}){either}") for prefix in _REQUESTED]
        self.statements = [re.compile(f"(?i:{prefix}){letter}") for prefix in _STATEMENTS]
        self.standalone = re.compile(letter)
        self.leading = re.compile(rf"[\s*$(\[]{{0,4}}(?P<letter>{upper})(?=[.):,*\]$]|\s{{0,3}}$)")
        self.alone = re.compile(rf"[\s*$(\[\"'`]{{0,6}}(?P<letter>{upper}|{lower})[\s*$)\].\"'`]{{0,6}}$")


_CACHE: dict[str, _Patterns] = {}


def _patterns(letters: str) -> _Patterns:
    """Returns the compiled patterns, made once for each set of letters."""
    if letters not in _CACHE:
        _CACHE[letters] = _Patterns(letters)
    return _CACHE[letters]


def option_letters(row: Row) -> str:
    """Returns the letters of a row's options: as many as `choices` has (2 to 10), else A to D."""
    choices = row.columns.get("choices")
    return (
        "ABCDEFGHIJ"[: len(choices)]
        if isinstance(choices, list | tuple) and 2 <= len(choices) <= 10
        else DEFAULT_LETTERS
    )


def boxed_letter(text: str, letters: str) -> tuple[str | None, bool, str | None]:
    r"""Reads the last non-empty box.

    Args:
        text: the answer part.
        letters: allowed letters.

    Returns:
        (letter or null, whether the very last box is well formed and holds one allowed letter, content of the box or
        null if there is none).
    """
    is_last = True
    for box in boxes_from_last(text):
        if not box.is_empty:
            match = _BOXED_LETTER.fullmatch(box.content)
            letter = match[1].upper() if match and match[1].upper() in letters else None
            return letter, letter is not None and is_last and box.is_well_formed, box.content
        is_last = False
    return None, False, None


def stated_letter(text: str, row: Row) -> tuple[str | None, str]:
    """Reads the option that a text settles on, by the tiers of `mc/letter`.

    Args:
        text: the answer part.
        row: the row, for the number and the texts of its options.

    Returns:
        (letter or null, the tier that fired).
    """
    letters = option_letters(row)
    patterns = _patterns(letters)
    for tier, group in (("answer phrase", patterns.requested), ("statement", patterns.statements)):
        letter = _last_match(text, group)
        if letter:
            return letter, tier
    letter, _, _ = boxed_letter(text, letters)
    if letter:
        return letter, "box"
    match = patterns.alone.match(text) or patterns.leading.match(text)
    if match:
        return match["letter"].upper(), "leading letter"
    standalone = {match["letter"] for match in patterns.standalone.finditer(text)}
    if len(standalone) == 1 and not _is_negated(text, next(patterns.standalone.finditer(text)).start()):
        return standalone.pop(), "one letter"
    if not standalone:
        letter = _option_text(text, row, letters)
        if letter:
            return letter, "option text"
    return None, "none"


def last_letter(text: str, letters: str) -> str | None:
    """Returns the last standalone option letter that is neither negated nor the article "A", or null."""
    for match in reversed(list(_patterns(letters).standalone.finditer(text))):
        if not _is_negated(text, match.start("letter")):
            return match["letter"]
    return None


def _last_match(text: str, patterns: list[re.Pattern[str]]) -> str | None:
    """Returns the letter of the match that starts last and is not negated."""
    best: tuple[int, str] | None = None
    for pattern in patterns:
        for match in pattern.finditer(text):
            groups = match.groupdict()
            name = next(name for name in ("letter", "lower", "bare") if groups.get(name))
            if not _is_negated(text, match.start(name)) and (best is None or match.start(name) > best[0]):
                best = (match.start(name), groups[name].upper())
    return best[1] if best else None


def _is_negated(text: str, position: int) -> bool:
    """Whether the letter at a position follows "not", "isn't" or the like."""
    return _NEGATION.search(text[max(0, position - 24) : position]) is not None


def _option_text(text: str, row: Row, letters: str) -> str | None:
    """Returns the letter of the only option whose text occurs, as whole words, in the answer."""
    choices = row.columns.get("choices")
    if not isinstance(choices, list | tuple) or len(choices) != len(letters):
        return None
    folded = text.casefold()
    hits = [
        letter
        for letter, choice in zip(letters, choices, strict=True)
        if str(choice).strip() and re.search(rf"(?<!\w){re.escape(str(choice).strip().casefold())}(?!\w)", folded)
    ]
    return hits[0] if len(hits) == 1 else None


class _LetterScorer(Scorer):
    """Compares a letter with the gold letter."""

    def read(self, text: str, row: Row) -> tuple[str | None, str]:
        """Returns (letter or null, the rule that fired)."""
        return stated_letter(text, row)

    def score(self, text: str, row: Row) -> Verdict:
        """Grades one answer; see the class for the rules.

        Args:
            text: decoded answer.
            row: its row; the gold is one letter.

        Returns:
            The verdict; `no_answer` when no single choice is stated.
        """
        text = answer_part(text)
        gold = row.gold.strip().upper()
        letters = option_letters(row)
        letter, tier = self.read(text, row)
        boxed, in_form, _ = boxed_letter(text, letters)
        if letter is None:
            return self.verdict(is_strict=False, is_right=False, extracted=None, detail=f"{tier}: no single choice")
        is_right = letter == gold
        return self.verdict(
            is_strict=is_right and in_form and boxed == letter,
            is_right=is_right,
            extracted=letter,
            detail=f"{tier}: {letter} {'equals' if is_right else 'is not'} {gold}",
            in_form=in_form,
        )


@scorer
class McLetter(_LetterScorer):
    r"""`mc/letter`: the choice a text settles on; last match of the first tier that matches.

    `value` is the score of the protocol; `strict` also asks for the letter in a complete last box.
    """

    name = "mc/letter"
    version = 1
    headline = "value"
    summary = "option letter: answer phrase, statement, box, leading letter, only letter, option text"


@scorer
class MiniLetter(_LetterScorer):
    r"""`mini_letter`: strict = the last box holds the gold; value = that box, else the last standalone letter."""

    name = "mini_letter"
    version = 1
    headline = "strict"
    summary = r"strict = last \boxed{} holds the letter; value = box, else last standalone letter"

    def read(self, text: str, row: Row) -> tuple[str | None, str]:
        """Returns the boxed letter, else the last standalone one."""
        letters = option_letters(row)
        boxed, _, _ = boxed_letter(text, letters)
        if boxed:
            return boxed, "box"
        return last_letter(text, letters), "last letter"
