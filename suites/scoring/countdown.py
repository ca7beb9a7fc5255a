r"""Grades Countdown: reach a target from given numbers by + - * / and parentheses, every number exactly once.

Own parser on exact fractions: nothing is evaluated by the interpreter, there is no power, and a text of more than
`MAX_CHARS` characters is no expression. Pure functions that return on any text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

#: Longer text is prose, not an expression.
MAX_CHARS = 200

_TOKEN = re.compile(r"\s*(?:(?P<number>[0-9]+)|(?P<sign>[-+*/()]))")
_FRACTION = re.compile(r"\\[dt]?frac\s?\{([^{}]{1,200})\}\s?\{([^{}]{1,200})\}")
_SPELLINGS = (
    (re.compile(r"\\(?:times|cdot|ast)(?![A-Za-z])|[×·⋅∙✕]"), "*"),
    (re.compile(r"\\div(?![A-Za-z])|[÷∕]"), "/"),
    (re.compile("[\N{MINUS SIGN}\N{EN DASH}]"), "-"),
    (re.compile(r"\\(?:left|right|[bB]ig[lrg]?|displaystyle)(?![A-Za-z])|\\[()\[\],;:! ]|[$]"), " "),
    (re.compile(r"[{\[]"), "("),
    (re.compile(r"[}\]]"), ")"),
)
_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}
_APPLY: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": Fraction.__add__,
    "-": Fraction.__sub__,
    "*": Fraction.__mul__,
    "/": Fraction.__truediv__,
}
_STEP = re.compile(r"\s*([0-9]+)\s*([-+*/])\s*([0-9]+)\s*=\s*([0-9]+)\s*")


@dataclass(frozen=True)
class Expression:
    """A value and the numbers it was made of, in order."""

    value: Fraction
    numbers: tuple[int, ...]


def parse(text: str) -> Expression | None:
    """Reads an arithmetic expression.

    Args:
        text: unsigned whole numbers, + - * / and parentheses; a sum may begin with a sign. LaTeX and typographic
            operators are read, an equals sign and what follows it are dropped.

    Returns:
        Value and numbers; null when it is no expression, is longer than `MAX_CHARS`, or divides by zero.
    """
    text = text.strip()
    if not text or len(text) > MAX_CHARS:
        return None
    tokens = _tokens(_plain(text).split("=", 1)[0])
    return None if tokens is None else _evaluate(tokens)


def is_solved(expression: Expression | None, numbers: Iterable[int], target: int) -> bool:
    """Whether an expression has the target's value and uses every given number exactly once."""
    return (
        expression is not None
        and expression.value == target
        and Counter(expression.numbers) == Counter(int(number) for number in numbers)
    )


def steps_reach(text: str, numbers: Sequence[int], target: int) -> bool:
    """Whether a list of sub-equations such as ``86+28=114,31-13=18,114-18=96`` reaches the target.

    Args:
        text: equations of two operands, separated by commas, semicolons or line ends.
        numbers: what may be used; each result may be used once as well.
        target: what must be left when all is used.

    Returns:
        True only if every equation holds, uses what is there, and the target alone remains.
    """
    if len(text) > MAX_CHARS:
        return False
    left = Counter(int(number) for number in numbers)
    for part in filter(str.strip, re.split(r"[,;\n]", _plain(text))):
        step = _STEP.fullmatch(part)
        if step is None:
            return False
        first, operator, second, result = int(step[1]), step[2], int(step[3]), int(step[4])
        used = Counter((first, second))
        if used - left or (operator == "/" and second == 0):
            return False
        if _APPLY[operator](Fraction(first), Fraction(second)) != result:
            return False
        left = left - used + Counter((result,))
    return left == Counter((int(target),))


def _plain(text: str) -> str:
    """Returns the text with LaTeX and typographic operators in their plain form."""
    for _ in range(3):  # fractions in fractions; deeper ones stay and are then no expression
        text, count = _FRACTION.subn(r"((\1)/(\2))", text)
        if not count:
            break
    for pattern, plain in _SPELLINGS:
        text = pattern.sub(plain, text)
    return text


def _tokens(text: str) -> list[str] | None:
    """Returns numbers and signs in order, or null if there is anything else."""
    found, place, text = [], 0, text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            return None
        found.append(match["number"] or match["sign"])
        place = match.end()
    return found


def _evaluate(tokens: Sequence[str]) -> Expression | None:
    """Evaluates by two stacks (no recursion: nesting costs nothing); null for anything malformed."""
    values: list[Fraction] = []
    waiting: list[str] = []
    numbers: list[int] = []
    before = "("  # what stands before the current token; a value is wanted after "(" and after an operator
    for token in tokens:
        wants_value = before == "(" or before in _RANK
        if token[0].isdigit():
            if not wants_value:
                return None
            numbers.append(int(token))
            values.append(Fraction(numbers[-1]))
        elif token == "(":
            if not wants_value:
                return None
            waiting.append(token)
        elif token == ")":
            if wants_value or "(" not in waiting:
                return None
            while waiting[-1] != "(":
                if not _reduce(values, waiting.pop()):
                    return None
            waiting.pop()
        elif wants_value:
            if before != "(" or token not in "+-":
                return None
            values.append(Fraction(0))  # a leading sign: 0 - x
            waiting.append(token)
        else:
            while waiting and waiting[-1] != "(" and _RANK[waiting[-1]] >= _RANK[token]:
                if not _reduce(values, waiting.pop()):
                    return None
            waiting.append(token)
        before = token
    if before == "(" or before in _RANK:
        return None
    while waiting:
        operator = waiting.pop()
        if operator == "(" or not _reduce(values, operator):
            return None
    return Expression(values[0], tuple(numbers))


def _reduce(values: list[Fraction], operator: str) -> bool:
    """Applies an operator to the two topmost values; false for a division by zero."""
    second = values.pop()
    if operator == "/" and not second:
        return False
    values.append(_APPLY[operator](values.pop(), second))
    return True
