r"""Plain numbers in prose and LaTeX: `1,234`, `7{,}425`, `$-5`, `12%`, `2.5e3`, `1.2 \times 10^{5}`, `1\frac{1}{2}`.

ASCII digits only; values are exact fractions. No pattern here can backtrack over more than a bounded stretch.
"""

from __future__ import annotations

import re
from fractions import Fraction

#: Two values are the same answer below this difference.
TOLERANCE = Fraction(1, 10**6)

#: A longer run of digits is noise, not an answer; it is found but has no value.
MAX_DIGITS = 60

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3}(?![0-9]))+|[0-9]+)(?:\.[0-9]+)?"
_SIGN = r"(?P<sign>(?<![0-9A-Za-z)\]}])[-+])?(?:[$€£¥]\s?(?P<inner>-)?)?"


def _part(name: str) -> str:
    """Returns the pattern of a LaTeX fraction's argument: digits in braces or one bare digit."""
    return rf"(?:\{{\s?(?P<{name}>-?[0-9][0-9.,]{{0,40}})\s?\}}|(?P<{name}_digit>[0-9]))"


QUANTITY = re.compile(
    _SIGN
    + r"(?:"
    + rf"(?P<mixed>[0-9]{{1,6}})?\s?\\[dt]?frac\s?{_part('over')}\s?{_part('under')}"
    + r"|(?P<whole>[0-9]{1,6})\s(?P<top>[0-9]{1,4})/(?P<bottom>[0-9]{1,4})(?![0-9/])"
    + rf"|(?P<number>{_DIGITS}|(?<![0-9])\.[0-9]+)"
    + r"(?:[eE](?P<exponent>[-+]?[0-9]{1,3})(?![0-9A-Za-z]))?"
    + r"(?:\s?(?:\\times|\\cdot|[×*x])\s?10\s?\^\s?\{?(?P<power>[-+]?[0-9]{1,3})(?![0-9])\}?)?"
    + rf"(?:\s?/\s?(?P<denominator>{_DIGITS}))?"
    + r")"
)

_SEPARATOR = re.compile(r"(?<=[0-9])\\[,;:](?=[0-9]{3}(?![0-9]))")
_SPACE = re.compile(r"\\[,;: ]|\\quad|[~\u00a0\u2009\u202f]")
# "= - 5": a minus with a space after something that opens a value is a sign, not an operator.
_LOOSE_SIGN = re.compile(r"(?<=[=:(\[{])(\s?)-\s(?=[$0-9.])")
_WRAPPER = re.compile(
    r"\\(?:text|mbox|textbf|textrm|textit|mathrm|mathbf|mathit|operatorname|left|right|displaystyle)\b"
)
_DEGREE = re.compile(r"\^\s?\{?\s?\\circ\s?\}?|\\circ\b|\\degree\b|°")
_UNIT_POWER = re.compile(r"(?P<unit>[A-Za-z]\}?)\s?\^\s?(?:\{[0-9]\}|[0-9])")
_ARITHMETIC_WORD = re.compile(r"\\(?:times|cdot|div)\b")
_NOT_PLAIN = re.compile(r"\\[A-Za-z]+|[+*^=<>:!×÷√π|_]|\)\s?\(")
_VARIABLE = re.compile(r"[0-9}]\s?[xyzni](?![A-Za-z])|[A-Za-z)]\s?/\s?[0-9(]|[0-9A-Za-z)]\s?-\s?[0-9(]")


def plain(text: str) -> str:
    r"""Returns the text with LaTeX spacing, escaped currency and typographic minus signs in their plain form.

    Thousands may be written `1,234`, `1{,}234` or `1,\!234`.
    """
    text = text.replace("{,}", ",").replace("\\!", "").replace("\\$", "$").replace("\\%", "%")
    text = text.replace("\N{MINUS SIGN}", "-").replace("**", " ")
    return _LOOSE_SIGN.sub(r"\1-", _SPACE.sub(" ", _SEPARATOR.sub("", text)))


def value_of(match: re.Match[str]) -> Fraction | None:
    """Returns the exact value of a `QUANTITY` match.

    Args:
        match: a match on text that went through `plain`.

    Returns:
        The value; null when it has none (division by zero, more than `MAX_DIGITS` digits).
    """
    if len(match[0]) > 4 * MAX_DIGITS or sum(char.isdigit() for char in match[0]) > MAX_DIGITS:
        return None
    sign = -1 if match["sign"] == "-" or match["inner"] else 1
    if match["whole"]:
        value = _ratio(Fraction(int(match["top"])), Fraction(int(match["bottom"])))
        return None if value is None else sign * (int(match["whole"]) + value)
    if match["number"] is None:
        over = _decimal(match["over"] or match["over_digit"])
        value = _ratio(over, _decimal(match["under"] or match["under_digit"]))
        return None if value is None else sign * (int(match["mixed"] or 0) + value)
    value = _decimal(match["number"])
    if value is None:
        return None
    value *= Fraction(10) ** (int(match["exponent"] or 0) + int(match["power"] or 0))
    if match["denominator"]:
        value = _ratio(value, _decimal(match["denominator"]))
    return None if value is None else sign * value


def read_number(content: str) -> tuple[Fraction | None, str]:
    r"""Reads text that should hold exactly one number, such as the content of a box or a gold answer.

    Currency, percent and degree signs, units and words are dropped; `x = 11` and `3 \times 4 = 12` count as their right
    side. A factor, root, sum, list or clock time is no plain number.

    Args:
        content: the text, at most a few hundred characters.

    Returns:
        The value, or null, and the reason in words.
    """
    text = _UNIT_POWER.sub(r"\g<unit>", _DEGREE.sub(" ", _WRAPPER.sub(" ", plain(content)))).strip()
    text = re.sub(r"^-\s(?=[$0-9.])", "-", text)
    left, equals, right = text.rpartition("=")
    if equals:
        left = _ARITHMETIC_WORD.sub("*", left)
        if any(char.isalpha() for char in left) and re.search(r"[-0-9+*/^\\]", left):
            return None, "an equation, not a number"
        text = right
    matches = list(QUANTITY.finditer(text))
    if len(matches) > 1:
        # "18 (9 + 9)": what stands outside of the brackets is the answer, if it is one number.
        outside = re.sub(r"\s\([^()]*\)", " ", text)
        if len(list(QUANTITY.finditer(outside))) == 1:
            text, matches = outside, list(QUANTITY.finditer(outside))
    if not matches:
        return None, "no number in it"
    values = [value_of(match) for match in matches]
    if None in values:
        return None, "a number that has no value (too long, or a division by zero)"
    if len(set(values)) > 1:
        return None, "several numbers"
    if _NOT_PLAIN.search(QUANTITY.sub(" ", text)) or _VARIABLE.search(text):
        return None, "an expression, not a plain number"
    return values[0], "one number"


def same(first: Fraction, second: Fraction) -> bool:
    """Returns whether two values are the same answer (difference below 1e-6)."""
    return abs(first - second) < TOLERANCE


def show(value: Fraction) -> str:
    """Returns a value for display: an integer, a decimal where it is finite and short, else a fraction."""
    if value.denominator == 1:
        return (
            str(value.numerator) if abs(value) < 10**18 else f"{float(value):.6e}" if abs(value) < 10**300 else "huge"
        )
    decimal = f"{float(value):.6f}".rstrip("0") if abs(value) < 10**9 else ""
    if decimal and Fraction(decimal) == value:
        return decimal
    return f"{value.numerator}/{value.denominator}"


def _decimal(digits: str) -> Fraction | None:
    """Returns the value of digits with separators, or null if they are malformed."""
    try:
        return Fraction(digits.replace(",", ""))
    except ValueError:
        return None


def _ratio(top: Fraction | None, bottom: Fraction | None) -> Fraction | None:
    """Returns top / bottom, or null if one is missing or the divisor is 0."""
    return None if top is None or not bottom else top / bottom
