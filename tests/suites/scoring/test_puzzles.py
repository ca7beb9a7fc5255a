"""Countdown and Sudoku: verdicts of careful readers, exact arithmetic, and parsers that survive any text."""

from __future__ import annotations

import json
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from dare_bench.suites.scoring import countdown, sudoku, tags
from dare_bench.suites.scoring.boxes import answer_part
from hypothesis import given
from hypothesis import strategies as st

OWN = Path(__file__).parents[1] / "data" / "puzzles.jsonl"


def cases(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def verdict(case: dict[str, Any]) -> bool:
    text, gold = answer_part(case["response"]), case["gold"]
    if case["benchmark"] == "sudoku":
        return sudoku.is_solved(sudoku.grid(text), gold["puzzle"])
    answer = tags.last_box_or_tag(text)
    if answer is None:
        return countdown.steps_reach(text, gold["numbers"], gold["target"])
    return countdown.is_solved(countdown.parse(answer), gold["numbers"], gold["target"])


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in cases(OWN)])
def test_a_careful_reader_agrees(case: dict[str, Any]) -> None:
    assert verdict(case) == case["expected"], case["why"]


def test_all_recorded_cases(reference: Path) -> None:
    found = cases(reference / "grading_cases" / "puzzles.jsonl")
    assert len(found) >= 15
    assert [case["id"] for case in found if verdict(case) != case["expected"]] == []


# An expression as (text, value or null for a division by zero, numbers), built with all parentheses.
Tree = tuple[str, Fraction | None, list[int]]


def leaf(number: int) -> Tree:
    return str(number), Fraction(number), [number]


def join(parts: tuple[Tree, str, Tree]) -> Tree:
    (left, first, used), operator, (right, second, also) = parts
    value = None
    if first is not None and second is not None and not (operator == "/" and second == 0):
        value = {"+": first + second, "-": first - second, "*": first * second}.get(operator)
        value = first / second if value is None else value
    return f"({left} {operator} {right})", value, used + also


TREES = st.recursive(
    st.integers(0, 99).map(leaf), lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(join), max_leaves=8
)


@given(TREES)
def test_random_trees_have_the_value_of_exact_arithmetic(tree: Tree) -> None:
    text, value, numbers = tree
    found = countdown.parse(text)
    if len(text) > countdown.MAX_CHARS or value is None:
        assert found is None
    else:
        assert found == countdown.Expression(value, tuple(numbers))
        assert countdown.is_solved(found, numbers[::-1], int(value)) == (value.denominator == 1)


@given(st.lists(st.tuples(st.integers(1, 99), st.sampled_from("+-*/")), min_size=1, max_size=8))
def test_precedence_is_that_of_arithmetic(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{operator}" for number, operator in parts)[:-1]
    exact = "".join(f"Fraction({number}){operator}" for number, operator in parts)[:-1]
    found = countdown.parse(text)
    assert found is not None
    assert found.value == eval(exact, {"Fraction": Fraction})  # text made here, of digits and four signs


@given(st.one_of(st.text(max_size=400), st.text(alphabet="0123456789+-*/()= \\frac{}", max_size=250)))
def test_the_parsers_return_on_any_text(text: str) -> None:
    found = countdown.parse(text)
    assert found is None or (len(text.strip()) <= countdown.MAX_CHARS and found.numbers)
    assert countdown.steps_reach(text, [1, 2], 3) in (True, False)
    cells = sudoku.grid(text)
    assert cells is None or (len(cells) == 16 and cells.isdigit() and cells.isascii())
    assert tags.last_box_or_tag(text) is None or isinstance(tags.last_tag(text), str | None)


@pytest.mark.parametrize(
    "text",
    ["9**9**9", "7//2", "2^3", "1.5*2", "2(3)", "(2)(3)", "2 3", "()", "", "+", "2+", "*2", "2*-3", "(2", "2)", "abs(2)",
     "0x10", "1_000", "1e3", "٣+1", "２+1", "1/0", "1/(2-2)", "1+" * 150 + "1", "(" * 99 + "1"],
)  # fmt: skip
def test_what_is_no_expression(text: str) -> None:
    assert countdown.parse(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2*4-3", 5),
        ("-3+2*4", 5),
        ("2*(-3+4)", 2),
        ("8/3/2", Fraction(4, 3)),
        ("8-3-2", 3),
        ("1/3*3", 1),
        (r"2 \times 4 - 3 = 99", 5),
        (r"\frac{8}{2} \cdot 3", 12),
        (r"\left(8 \div 2\right) − 3", 1),
        (r"\frac{\frac{8}{2}}{2}", 2),
        ("$[6 - {2}] × 3$", 12),
        ("(" * 90 + "7" + ")" * 90, 7),
        ("9" * 200, int("9" * 200)),
    ],
)
def test_what_is_one(text: str, value: Fraction | int) -> None:
    found = countdown.parse(text)
    assert found is not None and found.value == value


def test_each_number_counts_once() -> None:
    numbers = [3, 3, 5]
    assert countdown.is_solved(countdown.parse("3+3+5"), numbers, 11)
    assert not countdown.is_solved(countdown.parse("3+8"), numbers, 11)
    assert not countdown.is_solved(countdown.parse("3+3+3+5-3"), numbers, 11)
    assert not countdown.is_solved(countdown.parse("33/3"), numbers, 11)
    assert not countdown.is_solved(None, numbers, 11)


def test_sub_equations() -> None:
    assert countdown.steps_reach("8/2=4\n4-3=1", [8, 2, 3], 1)
    assert countdown.steps_reach("2×3=6; 6+6=12", [2, 3, 6], 12)
    for wrong in ("8/2=4", "8/2=4,4-3=2", "8/3=2,2-2=0", "8-8=0", "8/2=4,4-3=1,so 1", "", "8/0=0"):
        assert not countdown.steps_reach(wrong, [8, 2, 3], 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2431312412434312", "2431312412434312"),
        ("2431 3124 1243 4312", "2431312412434312"),
        ("2 4 | 3 1\n3 1 | 2 4\n----+----\n1 2 | 4 3\n4 3 | 1 2", "2431312412434312"),
        ("[[2, 4, 3, 1], [3, 1, 2, 4], [1, 2, 4, 3], [4, 3, 1, 2]]", "2431312412434312"),
        ("Answer 1: 2431312412434312", "2431312412434312"),
        ("0401002010030310\n2431312412434312", "2431312412434312"),
        ("2431312412434312 has 16 digits", "2431312412434312"),
        ("243131241243431", None),
        ("24313124124343129", None),
        ("", None),
    ],
)
def test_grids(text: str, expected: str | None) -> None:
    assert sudoku.grid(text) == expected


def test_sudoku_rules() -> None:
    puzzle, solution = "0401002010030310", "2431312412434312"
    assert sudoku.is_puzzle(puzzle) and sudoku.is_puzzle("." * 16) and sudoku.is_puzzle("0" * 81)
    assert not any(map(sudoku.is_puzzle, ("", "5" * 16, "0" * 15, "0" * 9, "0" * 25, "0" * 256)))
    assert sudoku.is_solved(solution, puzzle)
    for wrong in ("2431312412434321", "1111111111111111", "243131241243431", puzzle, None):
        assert not sudoku.is_solved(wrong, puzzle)
    # Rows and columns right, boxes wrong.
    assert not sudoku.is_solved("1234234134124123", "0" * 16)
    assert sudoku.share_right(solution, puzzle, solution) == 1
    assert sudoku.share_right(solution, solution, solution) == 0, "nothing was empty"
    assert sudoku.changed_clues(puzzle, puzzle) == 0


def test_tags() -> None:
    assert tags.last_tag("<answer>1</answer> <answer> 2 </answer>") == "2"
    assert tags.last_tag("<answer>1") is tags.last_tag("1</answer>") is tags.last_tag("</answer><answer>") is None
    assert tags.last_box_or_tag(r"<answer>1</answer> no: \boxed{2}") == "2"
    assert tags.last_box_or_tag(r"\boxed{1} <answer>2</answer>") == "2"
    assert tags.last_box_or_tag(r"<answer>it is \boxed{3}</answer> \boxed{}") == "3"
    assert tags.last_box_or_tag("nothing") is None


@pytest.mark.parametrize("unit", ["1 ", "1 | ", "(", "<answer>", "\\frac{1}{2}", "1,", "  ", "-"])
def test_long_text_costs_little(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    began = time.perf_counter()
    countdown.parse(text)
    countdown.steps_reach(text, [1], 1)
    sudoku.grid(text)
    tags.last_box_or_tag(text)
    assert time.perf_counter() - began < 2
