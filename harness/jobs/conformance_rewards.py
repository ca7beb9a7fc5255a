"""rewards.json: completions with the scores of published reward functions, graded again by the rewards of this project.

Rewards live in `suites`, which `dare` does not know: this module is handed to the comparison from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dare_bench.dare.conformance.fixture import Compared, Fixture
from dare_bench.suites import rewards
from dare_bench.suites.benchmarks import registry as benchmarks

_ALGEBRA = "equal by algebra, not by characters"
_NUMBERS = "both are numbers: separators and trailing zeros are form"
_READ = "unambiguous, read as the table's grader reads it"

#: (section, grader) -> row -> (score here, why the published one is a defect).
CORRECTED: Mapping[tuple[str, str], Mapping[str, tuple[float, str]]] = {
    ("countdown", ""): {
        "equals_sign": (1.0, "what follows the equals sign is no part of the expression"),
        "latex": (1.0, "LaTeX operators are operators"),
        "empty_answer": (0.0, "an empty tag answers nothing"),
    },
    ("gsm8k_espo", "reward"): {"thousands": (1.0, _NUMBERS), "gold_comma": (1.0, _NUMBERS)},
    ("math", "espo_math_verify"): {"two_boxes": (1.0, "the last box decides"), "unclosed": (1.0, _READ)},
    ("math", "spg_correct_2_0"): {
        "frac_unreduced": (1.0, _ALGEBRA), "expr": (1.0, _ALGEBRA), "sqrt": (1.0, _ALGEBRA),
        "set_order": (1.0, "a bare list of solutions is a set"), "thousand": (1.0, _NUMBERS),
        "decimal_int": (1.0, _NUMBERS), "no_box": (1.0, _READ), "unclosed": (1.0, _READ),
    },
    ("math", "dare_0_1"): {
        "frac_unreduced": (1.0, _ALGEBRA), "set_order": (1.0, "a bare list of solutions is a set"),
        "no_box": (1.0, _READ), "unclosed": (1.0, _READ), "fbox_space": (1.0, "a space may follow the command"),
    },
}  # fmt: skip

_PARTS = {
    "correctness": "correctness(2.0)",
    "integer": "int(0.5)",
    "strict_format": "strict_format(0.5)",
    "soft_format": "soft_format(0.5)",
    "tags": "xmlcount(<=0.5)",
}


def cases(data: Fixture) -> Iterator[Compared]:
    """Every row of every section: as published where an option or the rule gives that, else as corrected."""
    for row in data["gsm8k_d1_spg"]["rows"]:
        name, gold = f"gsm8k {row['name']}", row["answer"]
        for part, key in _PARTS.items():
            alone = {other: (2.0 if other == "correctness" else 0.5) * (other == part) for other in _PARTS}
            found = _score("gsm8k", row, {**alone, "d1_strings": True}, gold=gold)
            yield Compared(f"{name}: {part}", float(row[key]), found)
        yield Compared(f"{name}: total", float(row["total"]), _score("gsm8k", row, {"d1_strings": True}, gold=gold))
    for row in data["gsm8k_espo"]["rows"]:
        (found,) = benchmarks.get("gsm8k").reward()(["q"], [row["completion"]], gold=[row["answer"]])
        yield _compared("gsm8k_espo", row, "reward", found)
    for row in data["countdown"]["rows"]:
        found = _score("countdown", row, numbers=row["numbers"], gold=str(row["target"]))
        for grader in ("spg", "dare", "espo"):
            yield _compared("countdown", row, grader, found)
    for row in data["sudoku"]["rows"]:
        found = _score("sudoku", row, {"d1_digits": True}, puzzle=row["puzzle"], gold=row["solution"])
        for grader in ("spg", "dare"):
            yield _compared("sudoku", row, grader, found)
    for row in data["math"]["rows"]:
        form = _score("math", row, {"correctness": 0, "d1_boxed_bug": True}, gold=row["answer"])
        yield _compared("math", row, "spg_format", form)
        found = _score("math", row, {"format": 0}, gold=row["answer"])
        for grader, scale in (("dare_0_1", 1.0), ("spg_correct_2_0", 2.0), ("espo_math_verify", 1.0)):
            yield _compared("math", row, grader, found / 2, scale)
    for row in data["code_format"]["rows"]:
        yield _compared("code_format", row, "reward", _score("code_format", row))


def _compared(section: str, row: Mapping[str, Any], grader: str, found: float, scale: float = 1.0) -> Compared:
    """The published score divided by `scale`, or the corrected one with its reason."""
    published = float(row[grader]) / scale
    table = CORRECTED.get((section, grader)) or CORRECTED.get((section, ""), {})
    value, reason = table.get(row["name"], (published, ""))
    note = f" (corrected: {reason})" if reason else ""
    return Compared(f"{section} {row['name']}: {grader}{note}", value, found)


def _score(name: str, row: Mapping[str, Any], options: Mapping[str, Any] | None = None, **columns: Any) -> float:
    cls = rewards.get(name)
    function = cls(cls.options_class(**(options or {})))
    (value,) = function(["q"], [row["completion"]], **{key: [column] for key, column in columns.items()})
    return float("nan") if value is None else value
