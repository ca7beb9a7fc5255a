"""`gsm8k`: a right number, a whole number, and the reasoning/answer tags, each paid apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dare_bench.suites.benchmarks.base import Row
from dare_bench.suites.rewards.base import Options, Reward
from dare_bench.suites.rewards.registry import reward
from dare_bench.suites.scoring import quantity
from dare_bench.suites.scoring.number import MathNumber
from dare_bench.suites.scoring.tags import last_tag

#: Lost for every character behind the closing answer tag, once for each of the two tags.
TRAILING = 0.001

_INTEGER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)")
_D1_STRICT = re.compile(r"<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$")
_D1_SOFT = re.compile(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>")
_MARKS = ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", "\n</answer>")


@dataclass(frozen=True)
class Gsm8kOptions(Options):
    """Options of `gsm8k`: what each part pays.

    Attributes:
        correctness: the number equals the gold.
        integer: the answer is nothing but a whole number.
        soft_format: reasoning and answer tags in order.
        strict_format: the same with each tag on a line of its own and nothing else.
        tags: a quarter of it for each tag with its line breaks that occurs exactly once, less trailing text.
        d1_strings: published reading: the text in the tag must equal the gold's characters, whole numbers have no sign,
            format patterns end at a line end, and trailing text is counted from the opening tag for one of two tags.
    """

    correctness: float = 2.0
    integer: float = 0.5
    soft_format: float = 0.5
    strict_format: float = 0.5
    tags: float = 0.5
    d1_strings: bool = False


@reward
class Gsm8k(Reward):
    """Sum of five parts, at most 4: a published total of 3.488 was the most that its own patterns could give.

    The number is that of the last answer tag, without one that of the whole text, read as `math/number` does.
    Source: d1 (arXiv 2504.12216).
    """

    name = "gsm8k"
    summary = "right number 2, whole number 0.5, soft and strict tag format 0.5 each, tags 0.5"
    options_class = Gsm8kOptions

    def grade(self, text: str, row: Row) -> float:
        """Returns the sum of the parts."""
        pay = self.options
        if pay.d1_strings:
            answer = text.rsplit("<answer>", 1)[-1].split("</answer>", 1)[0].strip()
            is_right, is_integer = answer == row.gold, answer.isdigit()
            strict, soft = _D1_STRICT.match(text) is not None, _D1_SOFT.match(text) is not None
        else:
            answer = _answer(text)
            is_right, is_integer = bool(self.exact(text, row)), _INTEGER.fullmatch(answer) is not None
            strict, soft = is_strict(text), is_soft(text)
        return (
            pay.correctness * is_right
            + pay.integer * is_integer
            + pay.strict_format * strict
            + pay.soft_format * soft
            + pay.tags * tag_share(text, from_opening=pay.d1_strings)
        )

    def exact(self, text: str, row: Row) -> float:
        """Returns 1 where the number of the answer equals the gold."""
        candidates = MathNumber().candidates(_answer(text))
        found = next((item for item in candidates if item is not None), None)
        gold, _ = quantity.read_number(row.gold)
        self.note("no answer" if found is None else found.tier if last_tag(text) is None else "answer tag")
        if found is None or found.value is None or gold is None:
            return 0.0
        return float(quantity.same(found.value, gold))


def is_soft(text: str) -> bool:
    """Whether a text begins with closed reasoning tags that closed answer tags follow."""
    if not text.startswith("<reasoning>"):
        return False
    _, reasoned, behind = text.partition("</reasoning>")
    behind = behind.lstrip()
    return bool(reasoned) and behind.startswith("<answer>") and "</answer>" in behind


def is_strict(text: str) -> bool:
    """Whether a text is exactly the two sections, each tag once and on a line of its own; the last line end may lack."""
    body = text.removesuffix("\n")
    return (
        body.startswith("<reasoning>\n")
        and body.endswith("\n</answer>")
        and body.count("\n</reasoning>\n<answer>\n") == 1
        and all(body.count(tag) == 1 for tag in ("<reasoning>", "</reasoning>", "<answer>", "</answer>"))
    )


def tag_share(text: str, *, from_opening: bool = False) -> float:
    """Returns a quarter for each tag that occurs once with its line breaks, less `TRAILING` for trailing characters.

    Args:
        text: answer up to its end token.
        from_opening: count the trailing text of one of the two answer tags from the opening tag.

    Returns:
        At most 1; below 0 for long trailing text.
    """
    share, behind = 0.0, text.rsplit("\n</answer>", 1)[-1]
    for mark in _MARKS:
        if text.count(mark) != 1:
            continue
        share += 0.25
        if mark == "\n<answer>\n" and from_opening:
            share -= 2 * TRAILING * len(text.rsplit(mark, 1)[-1])
        elif mark == "\n</answer>" and from_opening:
            share -= 2 * TRAILING * (len(behind) - 1)
        elif "answer" in mark and "\n</answer>" in text:
            share -= 2 * TRAILING * len(behind.strip())
    return share


def _answer(text: str) -> str:
    """Returns the content of the last answer tag, or the text where there is none."""
    tagged = last_tag(text)
    return text.strip() if tagged is None else tagged
