r"""Plain-number scorers: own cases, the reference grading cases as oracle, and properties on arbitrary text."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from dare_bench.suites.benchmarks.base import Row
from dare_bench.suites.scoring import registry
from dare_bench.suites.scoring.quantity import read_number, show
from hypothesis import given, settings
from hypothesis import strategies as st

MATH = registry.get("math/number")
MINI = registry.get("mini_number")

# Cases of math.jsonl whose gold is a number but whose answer needs algebra: those wait for the LaTeX grader.
NEEDS_ALGEBRA = {"math-018"}


def row_of(gold: str) -> Row:
    return Row(id="r", question="q", gold=gold)


# (text, gold, strict, value) for mini_number
MINI_CASES = [
    (r"12+7=19. \boxed{19}", "19", 1, 1),
    (r"\boxed{19}", "20", 0, 0),
    ("12+7=19. The answer is 19.", "19", 0, 1),
    ("12+7=19. #### 19", "19", 0, 1),
    ("#### 19\nThat took 3 steps.", "19", 0, 1),
    (r"\boxed{3} no wait \boxed{19}", "19", 1, 1),
    (r"\boxed{19} no wait \boxed{3}", "19", 0, 0),
    (r"\boxed{19} and \boxed{}", "19", 0, 1),
    (r"boxed{19}", "19", 0, 1),
    (r"\boxed{19", "19", 0, 1),
    (r"\boxed 19", "19", 0, 1),
    (r"\.boxed{19}", "19", 0, 1),
    (r"\boxed{\$1,219}", "1219", 1, 1),
    (r"\boxed{1{,}219\text{ apples}}", "1219", 1, 1),
    (r"\boxed{19 apples}", "19", 1, 1),
    (r"\boxed{19\%}", "19", 1, 1),
    (r"\boxed{19.0}", "19", 1, 1),
    (r"\boxed{-19}", "-19", 1, 1),
    (r"\boxed{- 19}", "19", 0, 0),
    (r"\boxed{−19}", "-19", 1, 1),
    (r"\boxed{{19}}", "19", 1, 1),
    (r"\boxed{\boxed{19}}", "19", 1, 1),
    (r"\boxed{12+7}", "19", 0, 0),
    (r"\boxed{12+7=19}", "19", 1, 1),
    (r"\boxed{5-5}", "5", 0, 0),
    (r"\boxed{(5)(5)}", "5", 0, 0),
    (r"\boxed{5!}", "5", 0, 0),
    (r"\boxed{19, 20}", "19", 0, 0),
    (r"\boxed{٣}", "3", 0, 0),
    (r"\boxed{３}", "3", 0, 0),
    (r"\boxed{19}<|endoftext|> \boxed{3}", "19", 1, 1),
    (r"<think>\boxed{3}</think>\boxed{19}", "19", 1, 1),
    ("19 apples, 20 pears", "20", 0, 1),
    ("It costs $-5", "-5", 0, 1),
]


@pytest.mark.parametrize(("text", "gold", "strict", "value"), MINI_CASES)
def test_mini_number(text, gold, strict, value):
    verdict = MINI.score(text, row_of(gold))
    assert verdict.metrics == {"strict": strict, "value": value}, verdict
    assert verdict.value == strict
    assert verdict.status == "scored"


# (text, gold, value, rule that fired) for math/number
MATH_CASES = [
    (r"First \boxed{3}. So \boxed{18}.", "18", 1, "box"),
    (r"\boxed{...} so 102 / 3 = $34.", "34", 1, "equation"),
    ("#### 50\nNow mine: 9 * 2 = 18.\n#### 18", "18", 1, "####"),
    ("#### Step 1\nWe add. The answer is 18.", "18", 1, "answer phrase"),
    ("So the answer is $500, not $2,000.", "500", 1, "answer phrase"),
    ("The answer is 12 + 6 = 18.", "18", 1, "answer phrase"),
    ("The answer is 18.\nWait. The answer is 10.", "10", 1, "answer phrase"),
    ("**Final Answer:**\n\n**73**", "73", 1, "answer phrase"),
    ("21 + 8 + 3 = 32 birds and they sit on 2 trees", "32", 1, "equation"),
    ("x = 3 + 4 is what we add, then 9", "9", 1, "last number"),
    ("The delivery comes to $29.00.", "29", 1, "last number"),
    (r"\boxed{\frac{2}{3}}", "2", 0, "box"),
    (r"\boxed{\text{18 or so}}", "18", 1, "box"),
    (r"\boxed{2x + 3 = 7}", "7", 0, "box"),
    (r"\boxed{1.2 \times 10^{5}}", "120000", 1, "box"),
    (r"\boxed{1e999}", "5", 0, "box"),
]


@pytest.mark.parametrize(("text", "gold", "value", "tier"), MATH_CASES)
def test_math_number(text, gold, value, tier):
    verdict = MATH.score(text, row_of(gold))
    assert (verdict.value, verdict.detail.split(":")[0]) == (value, tier), verdict


@pytest.mark.parametrize("text", ["", "   ", "I cannot tell.", "<|endoftext|> 5", r"\boxed{}", "Ⓑ ٣ ４"])
@pytest.mark.parametrize("scorer", [MATH, MINI], ids=lambda scorer: scorer.name)
def test_no_answer(scorer, text):
    verdict = scorer.score(text, row_of("5"))
    assert (verdict.value, verdict.status, verdict.extracted) == (0.0, "no_answer", None)


def test_strict_of_math_number_asks_for_a_complete_last_box():
    verdict = MATH.score("The answer is 18.", row_of("18"))
    assert verdict.metrics == {"strict": 0.0, "value": 1.0}
    assert MATH.score(r"\boxed{18}", row_of("18")).metrics == {"strict": 1.0, "value": 1.0}


def test_unreadable_gold_is_recorded_and_not_credited():
    verdict = MATH.score(r"\boxed{5}", row_of("five"))
    assert verdict.value == 0.0
    assert "the gold 'five' cannot be read" in verdict.detail


def test_reference_cases(reference):
    """Every grading case whose gold is a plain number gets the verdict of a careful reader."""
    wrong, seen = [], 0
    for line in (reference / "grading_cases" / "math.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if read_number(case["gold"])[0] is None or case["id"] in NEEDS_ALGEBRA:
            continue
        seen += 1
        verdict = MATH.score(case["response"], row_of(case["gold"]))
        if bool(verdict.value) != case["expected"]:
            wrong.append((case["id"], verdict))
    assert wrong == []
    assert seen >= 45


def test_reference_cases_without_a_numeric_gold_are_never_credited(reference):
    lines = (reference / "grading_cases" / "math.jsonl").read_text(encoding="utf-8").splitlines()
    cases = [case for case in map(json.loads, lines) if read_number(case["gold"])[0] is None]
    assert cases
    assert [case["id"] for case in cases if MATH.score(case["response"], row_of(case["gold"])).value] == []


HOSTILE = [
    r"\boxed{", "{", "}", r"\boxed{5}", r"\boxed{\boxed{", "boxed{", "9", "1,111,", "-", "$-", "####", "#### \n", "=",
    "=1+", "answer is ", "Answer: ", r"\frac{1}{", "1/", "1 / ", "1e5", r"1\times10^", " ", "\n", "\x00", "\ud800",
    "((A", "<think>", "<|eot_id|>", "not A ", "选项 ", "A ", "option A ", "the answer is for sure maybe ",
]  # fmt: skip


#: What the scorers of all benchmarks read beside the gold answer.
COLUMNS = {"choices": ["ox", "bee", "cat", "dog"], "entry_point": "double", "tests": ["assert double(2) == 4"]}


@pytest.mark.parametrize("atom", HOSTILE)
def test_hostile_text_of_100_kB_is_graded(atom):
    """A quadratic pattern would hang here; each text takes milliseconds to under a second."""
    text = (atom * (100_000 // len(atom)))[:100_000]
    for scorer in registry.scorers().values():
        verdict = scorer.score(text, Row(id="r", question="q", gold="5", columns=COLUMNS))
        assert verdict.metrics["strict"] <= verdict.metrics["value"]
        assert len(verdict.extracted or "") <= 200


# Half structure, half noise: random unicode alone almost never reaches the readers.
PIECES = st.one_of(
    st.text(max_size=8), st.sampled_from([*HOSTILE, "12", "1.5", r"\boxed{7}", "The answer is ", ".", "B"])
)
TEXTS = st.lists(PIECES, max_size=30).map("".join)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.sampled_from(["7", "-3", "12", "B"]))
def test_scorers_never_raise_and_are_deterministic(text, gold):
    for scorer in registry.scorers().values():
        row = Row(id="r", question="q", gold=gold, columns=COLUMNS)
        first = scorer.score(text, row)
        assert first == scorer.score(text, row)
        assert first.value == first.metrics[scorer.headline]
        assert 0.0 <= first.metrics["strict"] <= first.metrics["value"] <= 1.0
        assert (first.extracted is None) == (first.status == "no_answer")
        assert (first.detail or "").isprintable()


@settings(max_examples=200, deadline=None)
@given(st.integers(-(10**12), 10**12), st.sampled_from(["{}", "{} apples", r"\${}", "{}.0", r"{}\%", r"\text{{{}}}"]))
def test_every_integer_is_read_back_from_a_box(number, form):
    for written in (str(number), f"{number:,}", f"{number:,}".replace(",", "{,}")):
        text = r"\boxed{" + form.format(written) + "}"
        for scorer in (MATH, MINI):
            assert scorer.score(text, row_of(str(number))).metrics == {"strict": 1.0, "value": 1.0}, text
            assert scorer.score(text, row_of(str(number + 1))).value == 0.0, text


@given(st.fractions(min_value=-(10**15), max_value=10**15, max_denominator=1000))
def test_shown_values_read_back(value):
    assert read_number(show(value))[0] == value


def test_tolerance_is_one_millionth():
    assert MATH.score(r"\boxed{0.3333333}", row_of(r"\frac{1}{3}")).value == 1.0
    assert MATH.score(r"\boxed{0.333}", row_of(r"\frac{1}{3}")).value == 0.0
    assert read_number(r"1\frac{1}{2}")[0] == Fraction(3, 2)
