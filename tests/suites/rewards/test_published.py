"""Published reward functions on 71 completions: their score, or ours with the reason why it is another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dare_bench.suites import rewards
from dare_bench.suites.benchmarks import registry as benchmarks

TABLE = json.loads((Path(__file__).parents[1] / "data" / "published_rewards.json").read_text("utf-8"))

FORM = "format patterns accept several lines; trailing text counts from the closing tag"
COMMA = "both sides are numbers: separators, trailing zeros and units are form, not value"
TAGS = "the right number is right without tags; form has parts of its own"
SIGN = "a negative whole number is a whole number"
GRID = "an answer is exactly 16 digits: nothing is cut, padded or put together"
CLUES = "a changed clue cancels a right cell"
EQUAL = "equal by algebra, not by characters"
READ = "read as the table's grader reads it: the answer is unambiguous"

#: section -> row -> (our score, why it is not the published one)
CORRECTED: dict[str, dict[str, tuple[float, str]]] = {
    "gsm8k_d1_spg": {
        "perfect": (4.0, FORM),
        "multiline_reasoning": (4.0, FORM),
        "no_tags": (2.0, TAGS),
        "comma": (2.5, COMMA),
        "decimal": (2.0, COMMA),
        "units": (2.0, COMMA),
        "format_only_wrong": (2.0, FORM),
        "trailing_text": (3.482, FORM),
        "negative": (2.5, SIGN),
    },
    "countdown": {
        "equals_sign": (1.0, "what follows the equals sign is no part of the expression"),
        "latex": (1.0, "LaTeX operators are operators"),
        "empty_answer": (0.0, "an empty tag answers nothing"),
    },
    "sudoku": {
        "short": (0.0, GRID),
        "long": (0.0, GRID),
        "all_ones": (0.0, CLUES),
        "overwrites_clues": (5 / 9, CLUES),
        "prefix_text_digits": (1.0, GRID),
    },
    "math": {
        "frac_unreduced": (1.0, EQUAL),
        "set_order": (1.0, "a bare list of solutions is a set"),
        "no_box": (1.0, READ),
        "unclosed": (1.0, READ),
        "thousand": (1.0, COMMA),
        "expr": (1.0, EQUAL),
        "sqrt": (1.0, EQUAL),
        "decimal_int": (1.0, COMMA),
    },
    "gsm8k_espo": {"thousands": (1.0, COMMA), "gold_comma": (1.0, COMMA)},
    "code_format": {},
}


def rows(section: str) -> list[Any]:
    return [pytest.param(row, id=row["name"]) for row in TABLE[section]["rows"]]


def score(name: str, completion: str, options: dict[str, Any] | None = None, **columns: Any) -> float:
    cls = rewards.get(name)
    (value,) = cls(cls.options_class(**(options or {})))(["q"], [completion], **{k: [v] for k, v in columns.items()})
    assert value is not None
    return value


def expected(section: str, row: dict[str, Any], published: float) -> float:
    corrected = CORRECTED[section].get(row["name"])
    if corrected is None:
        return published
    assert corrected[0] != pytest.approx(published), "the row is listed as corrected but is equal"
    assert corrected[1]
    return corrected[0]


def test_the_corrections_name_rows():
    for section, table in CORRECTED.items():
        assert set(table) <= {row["name"] for row in TABLE[section]["rows"]}
    assert set(CORRECTED) == set(TABLE)
    assert sum(len(section["rows"]) for section in TABLE.values()) == 71


@pytest.mark.parametrize("row", rows("gsm8k_d1_spg"))
def test_gsm8k(row: dict[str, Any]) -> None:
    parts = {"correctness": "correctness(2.0)", "integer": "int(0.5)", "strict_format": "strict_format(0.5)",
             "soft_format": "soft_format(0.5)", "tags": "xmlcount(<=0.5)"}  # fmt: skip
    for part, key in parts.items():
        alone = {name: (2.0 if name == "correctness" else 0.5) * (name == part) for name in parts}
        found = score("gsm8k", row["completion"], {**alone, "d1_strings": True}, gold=row["answer"])
        assert found == pytest.approx(row[key]), part
    assert score("gsm8k", row["completion"], {"d1_strings": True}, gold=row["answer"]) == pytest.approx(row["total"])
    ours = expected("gsm8k_d1_spg", row, row["total"])
    assert score("gsm8k", row["completion"], gold=row["answer"]) == pytest.approx(ours)


@pytest.mark.parametrize("row", rows("gsm8k_espo"))
def test_exact_on_gsm8k(row: dict[str, Any]) -> None:
    exact = benchmarks.get("gsm8k").reward()
    assert exact(["q"], [row["completion"]], gold=[row["answer"]]) == [expected("gsm8k_espo", row, row["reward"])]
    assert len(exact.rules) == 1 and exact.rules[0] in ("box", "####", "answer phrase", "last number")


@pytest.mark.parametrize("row", rows("countdown"))
def test_countdown(row: dict[str, Any]) -> None:
    assert row["spg"] == row["dare"] == row["espo"]
    task = {"numbers": row["numbers"], "gold": str(row["target"])}
    ours = expected("countdown", row, row["spg"])
    assert score("countdown", row["completion"], **task) == ours
    # Without the floor, what remains is the exact score.
    assert score("countdown", row["completion"], {"format_score": 0}, **task) == float(ours == 1)


@pytest.mark.parametrize("row", rows("sudoku"))
def test_sudoku(row: dict[str, Any]) -> None:
    assert row["spg"] == row["dare"]
    task = {"puzzle": row["puzzle"], "gold": row["solution"]}
    assert score("sudoku", row["completion"], {"d1_digits": True}, **task) == pytest.approx(row["spg"])
    ours = expected("sudoku", row, row["spg"])
    assert score("sudoku", row["completion"], **task) == pytest.approx(ours)
    assert score("sudoku", row["completion"], {"partial": False}, **task) == float(ours == 1)


@pytest.mark.parametrize("row", rows("math"))
def test_math(row: dict[str, Any]) -> None:
    form = {"correctness": 0, "d1_boxed_bug": True}
    assert score("math", row["completion"], form, gold=row["answer"]) == row["spg_format"]
    ours = expected("math", row, row["spg_correct_2_0"] / 2)
    right = score("math", row["completion"], {"format": 0}, gold=row["answer"])
    assert right == 2 * ours
    # Math-Verify on the full text differs on two rows: two boxes (the last one decides) and an unclosed box.
    assert (right == 2 * row["espo_math_verify"]) == (row["name"] not in ("two_boxes", "unclosed"))


@pytest.mark.parametrize("row", rows("code_format"))
def test_code_format(row: dict[str, Any]) -> None:
    assert score("code_format", row["completion"]) == expected("code_format", row, row["reward"])
    strict = 0.0 if row["name"] == "no_newline_end" else row["reward"]
    assert score("code_format", row["completion"], {"strict_newline": True}) == strict
