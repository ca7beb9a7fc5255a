"""Equal mathematical answers: careful readers' verdicts, a grader that is killed in time, and no false credit."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from dare_bench.suites.errors import SuiteError
from dare_bench.suites.scoring import equivalence
from dare_bench.suites.scoring.equivalence import Algebra, compare, same_by_text
from dare_bench.suites.scoring.latex_text import Stated, normalised, stated
from hypothesis import given
from hypothesis import strategies as st

OWN = Path(__file__).parents[1] / "data" / "equivalence.jsonl"


def cases(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def verdict(case: dict[str, Any]) -> bool:
    found = stated(case["response"])
    return found is not None and compare(found.text, case["gold"]).equal


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in cases(OWN)])
def test_a_careful_reader_agrees(case: dict[str, Any]) -> None:
    assert verdict(case) == case["expected"], case["why"]


def test_all_recorded_cases(reference: Path) -> None:
    found = cases(reference / "grading_cases" / "math.jsonl")
    found = [case for case in found if case["benchmark"] == "math"]
    assert len(found) > 40
    assert [case["id"] for case in found if verdict(case) != case["expected"]] == []


@pytest.mark.parametrize(
    ("answer", "gold", "equal", "rule"),
    [
        (r"\dfrac12", r"\frac{1}{2}", True, "text"),
        ("0.50", r"\frac12", True, "number"),
        ("1,234.0", "1234", True, "text"),
        (r"1{,}234", r"1,\!234", True, "text"),
        ("0.333333", r"\frac{1}{3}", False, "number"),
        ("2**3", "23", False, "algebra"),
        ("3 4", "34", False, "algebra"),
        (r"3 + 4 x", "3+4x", True, "text"),
        ("11_2", "11_3", False, "algebra"),
        ("11_{2}", "11_2", True, "text"),
        ("x^{2}", "x^2", True, "text"),
        ("1,2,3", "3", False, "algebra"),
        ("3 or 4", "3", False, "algebra"),
        (r"2\sqrt{3}", r"\sqrt{12}", True, "algebra"),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}", False, "algebra"),
        (r"1+10^{-20}", "1", False, "algebra"),
        (r"\{1,2\}", "(1,2)", False, "algebra"),
        ("(2,1)", "(1,2)", False, "algebra"),
        (r"1 \pm 2", "3,-1", True, "algebra"),
        (r"x<5", "5", False, "algebra"),
        (r"\infty", r"-\infty", False, "algebra"),
        (r"\varnothing", r"\emptyset", True, "text"),
        (r"\text{(C)}", "C", True, "text"),
        ("5", "", False, "algebra"),
        ("", "", False, "text"),
        ("x+" * 400 + "x", "401x", False, "too long"),
        ("}{", "5", False, "algebra"),
        ("\ud800\0", "5", False, "algebra"),
    ],
)
def test_pairs(answer: str, gold: str, equal: bool, rule: str) -> None:
    found = compare(answer, gold)
    assert (found.equal, found.rule) == (equal, rule)


def test_a_comparison_that_hangs_is_cut_off_and_the_next_one_works() -> None:
    algebra = Algebra()
    try:
        assert algebra.compare("x+1", "1+x").equal
        first = algebra._process
        began = time.perf_counter()
        found = algebra.compare(r"9^{9^{9^{9}}}", "4^{4^{4^{4}}}", seconds=0.5)
        assert (found.equal, found.rule, algebra.timeouts) == (False, "grader timeout", 1)
        assert time.perf_counter() - began < 5
        assert first is not None and first.poll() is not None, "the process is gone"
        began = time.perf_counter()
        assert algebra.compare(r"9^{9^{9^{9}}}", "4^{4^{4^{4}}}", seconds=0.5) == found
        assert time.perf_counter() - began < 0.1, "remembered"
        assert algebra.compare("y+x", "x+y").equal
    finally:
        algebra.stop()


def test_a_worker_that_cannot_start_is_an_error_with_a_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "_MODULE", "dare_bench.suites.scoring.nothing_here")
    with pytest.raises(SuiteError, match=r"does not start; `python -m .* shows why"):
        Algebra().compare("x+1", "1+x")


def test_the_worker_ends_with_its_input() -> None:
    command = [sys.executable, "-P", "-m", "dare_bench.suites.scoring.algebra"]
    question = json.dumps({"answer": "x+x", "gold": "2x", "seconds": 20}) + "\n"
    done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["ready", '{"equal": true, "problem": ""}']


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{1} then \boxed{42}", Stated("box", "42")),
        (r"the roots are $\boxed{1}$, and $\boxed{2}$.", Stated("box", "1, 2")),
        (r"<answer>\frac12</answer>", Stated("answer tag", r"\frac12")),
        ("<answer>\\boxed{}32</answer>", Stated("answer tag", "32")),
        ("Final Answer: **73**", Stated("answer phrase", "73")),
        ("The answer is $x^2$. Good.", Stated("answer phrase", "x^2")),
        (r"So \[ y = 3 = 4 \]", Stated("equation", "4")),
        (r"\boxed{3}<|endoftext|>\boxed{4}", Stated("box", "3")),
        ("no idea", None),
        ("", None),
    ],
)
def test_what_is_stated(text: str, expected: Stated | None) -> None:
    assert stated(text) == expected


@given(st.one_of(st.text(max_size=300), st.text(alphabet="\\boxed{}frac $()[]=.,*answer is1\n", max_size=300)))
def test_reading_returns_on_any_text(text: str) -> None:
    found = stated(text)
    assert found is None or found.text.strip()
    assert same_by_text(text, text) is not None
    assert isinstance(normalised(text), str)


@pytest.mark.parametrize("unit", ["\\boxed{1} and ", "answer is ", "$", "\\[", "\\(1=", "} ", "\\text{", "1,111", "9"])
def test_long_text_costs_little(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    began = time.perf_counter()
    stated(text)
    same_by_text(text, "1")
    assert time.perf_counter() - began < 3
