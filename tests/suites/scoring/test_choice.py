"""Option-letter scorers: own cases and the reference grading cases as oracle."""

from __future__ import annotations

import json

import pytest
from dare_bench.suites.benchmarks.base import Row
from dare_bench.suites.scoring import registry

LETTER = registry.get("mc/letter")
MINI = registry.get("mini_letter")
CHOICES = ["cow", "dog", "cat", "duck"]


def row_of(gold: str, choices: list[str] | None = CHOICES) -> Row:
    return Row(id="r", question="q", gold=gold, columns={} if choices is None else {"choices": choices})


# (text, gold, strict, value) for mini_letter
MINI_CASES = [
    (r"It is dog. \boxed{B}", "B", 1, 1),
    (r"It is dog. \boxed{B}", "C", 0, 0),
    (r"\boxed{\text{B}}", "B", 1, 1),
    (r"\boxed{(B)}", "B", 1, 1),
    (r"\boxed{b}", "B", 1, 1),
    (r"\boxed{A} no \boxed{B}", "B", 1, 1),
    (r"\boxed{B} no \boxed{A}", "B", 0, 0),
    (r"\boxed{B} so not A", "B", 1, 1),
    ("It is dog. The answer is B.", "B", 0, 1),
    ("boxed{B}", "B", 0, 1),
    (r"\boxed{B", "B", 0, 1),
    (r"\boxed{AB}", "A", 0, 0),
    (r"\boxed{E}", "A", 0, 0),
    (r"\boxed{dog} B", "B", 0, 1),
    ("A or B", "B", 0, 1),
    ("B, not A", "B", 0, 1),
    ("B is it. A dog barks.", "B", 0, 1),
    ("Because Cats Do", "C", 0, 0),
]


@pytest.mark.parametrize(("text", "gold", "strict", "value"), MINI_CASES)
def test_mini_letter(text, gold, strict, value):
    verdict = MINI.score(text, row_of(gold))
    assert verdict.metrics == {"strict": strict, "value": value}, verdict


# (text, letter that is read or None) for mc/letter
LETTER_CASES = [
    ("B", "B"),
    ("b", "B"),
    ("(b)", "B"),
    ("**B**", "B"),
    ("B. dog", "B"),
    ("E", None),
    ("The answer is (A). Hmm. The correct answer is (D).", "D"),
    ("The answer is for sure D, it can't be A or B", "D"),
    ("The answer is not A, it is B", "B"),
    ("The answer is a dog", "B"),
    ("The answer is A because cows moo", "A"),
    ("The correct answer is (c)", "C"),
    ("Answer: D) duck", "D"),
    (r"so $\boxed{\text{D}}$", "D"),
    ("Options (A) and (B) are out and (D) too", None),
    ("I would say the duck", "D"),
    ("the cow or the dog", None),
    ("只有选项B是对的，A、C、D 都不对", "B"),
    ("Ⓑ", None),
    ("", None),
    ("C C C", "C"),
]


@pytest.mark.parametrize(("text", "letter"), LETTER_CASES)
def test_mc_letter(text, letter):
    verdict = LETTER.score(text, row_of(letter or "A"))
    assert verdict.extracted == letter, verdict
    assert verdict.status == ("no_answer" if letter is None else "scored")
    assert verdict.value == float(letter is not None)


def test_letters_follow_the_number_of_options():
    ten = [f"option{index}" for index in range(10)]
    assert LETTER.score("The answer is J.", row_of("J", ten)).value == 1.0
    assert LETTER.score("The answer is J.", row_of("J")).value == 0.0
    assert LETTER.score("The answer is D.", row_of("D", None)).value == 1.0


def test_reference_cases(reference):
    """Every multiple-choice case gets the verdict of a careful reader."""
    wrong, seen = [], 0
    for line in (reference / "grading_cases" / "multiple_choice.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        seen += 1
        verdict = LETTER.score(case["response"], row_of(case["gold"]["answer"], case["gold"]["choices"]))
        if bool(verdict.value) != case["expected"]:
            wrong.append((case["id"], verdict))
    assert wrong == []
    assert seen == 30
