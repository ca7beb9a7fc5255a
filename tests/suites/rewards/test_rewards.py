"""Each reward beyond the published rows: its intended reading, its limits, and texts that try to cheat."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from dare_bench.suites import rewards
from dare_bench.suites.errors import SuiteError
from dare_bench.suites.rewards import code_format, gsm8k
from hypothesis import given
from hypothesis import strategies as st

COLUMNS = {
    "gold": "2431312412434312",
    "puzzle": "0401002010030310",
    "numbers": [2, 3, 4],
    "target": 5,
}
PURE = ("code_format", "countdown", "gsm8k", "sudoku")
PIECES = st.sampled_from(
    ["<answer>", "</answer>", "<reasoning>\n", "\n</reasoning>\n", "```python\n", "```", "\\boxed{", "}", "2*4-3",
     "\n", " ", "1,000", "####", "-", "(", "\\frac{", "=", "2431312412434312", "<|eot_id|>", "\x00", "\ud800", "é"]
)  # fmt: skip


def call(name: str, text: str, options: dict[str, Any] | None = None, **columns: Any) -> float:
    cls = rewards.get(name)
    function = cls(cls.options_class(**(options or {})))
    (value,) = function(["q"], [text], **{key: [value] for key, value in (COLUMNS | columns).items()})
    assert value is not None
    return value


@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=30).map("".join)))
def test_no_text_breaks_a_reward(text: str) -> None:
    for name in PURE:
        value = call(name, text)
        assert -1 <= value <= 4


@pytest.mark.parametrize("name", PURE)
@pytest.mark.parametrize(
    "unit",
    ["<answer>", "</answer>", "<answer>1", "\\boxed{", "```python\n", "1 ", "(", "-", "\n", "<reasoning>\n", "9,"],
)
def test_long_text_is_fast(name: str, unit: str) -> None:
    text = unit * (100_000 // len(unit))
    began = time.perf_counter()
    call(name, text)
    call(name, "<answer>" + text + "</answer>")
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize("name", ["countdown", "sudoku", "gsm8k", "code_format"])
def test_the_fill_behind_an_end_token_is_not_graded(name: str) -> None:
    answers = {
        "countdown": "<answer>2*4-3</answer>",
        "sudoku": "<answer>2431312412434312</answer>",
        "gsm8k": "<answer>2431312412434312</answer>",
        "code_format": "```python\nx = 1\n```",
    }
    plain = call(name, answers[name])
    for fill in ("<|eot_id|><|endoftext|>", "<|im_end|>\n<answer>9</answer>", "</s>```"):
        assert call(name, answers[name] + fill) == plain > 0


def test_math_pays_the_intended_format_term() -> None:
    form = {"correctness": 0}
    assert call("math", r"<answer>\boxed{1}</answer>", form) == 1.0
    assert call("math", "<answer>1</answer>", form) == 0.75
    assert call("math", r"\boxed{1}", form) == 0.5
    assert call("math", "1", form) == 0.25
    bug = {**form, "d1_boxed_bug": True}
    assert call("math", r"<answer>\boxed{1}</answer>", bug) == 0.75
    assert call("math", r"\boxed{1}", bug) == 0.25


def test_math_with_a_hostile_answer_is_wrong_in_time_and_says_so() -> None:
    cls = rewards.get("math")
    function = cls(cls.options_class(format=0, seconds=1))
    assert function(["q"], [r"\boxed{1+x}"], gold=["x+1"]) == [2.0]  # the worker is there now
    began = time.perf_counter()
    answers = [r"\boxed{9^{9^{9^{9}}}}", r"\boxed{\frac{4}{2}}", r"\boxed{y+x}"]
    assert function(["q"] * 3, answers, gold=["4^{4^{4^{4}}}", "2", "x+y"]) == [0.0, 2.0, 2.0]
    assert time.perf_counter() - began < 30
    assert function.rules == ["grader timeout", "box", "box"]


def test_gsm8k_tags_and_sections() -> None:
    perfect = "<reasoning>\na\nb\n</reasoning>\n<answer>\n4\n</answer>"
    assert gsm8k.is_strict(perfect) and gsm8k.is_strict(perfect + "\n") and gsm8k.is_soft(perfect)
    assert not gsm8k.is_strict(perfect + "\n\nmore")
    assert not gsm8k.is_strict(perfect.replace("\na\nb", "\n<answer>\nb"))
    assert gsm8k.is_soft("<reasoning>a</reasoning> <answer>4</answer> more")
    assert not gsm8k.is_soft("so <reasoning>a</reasoning><answer>4</answer>")
    assert not gsm8k.is_soft("<reasoning>a</reasoning> then <answer>4</answer>")
    assert gsm8k.tag_share(perfect) == 1.0
    assert gsm8k.tag_share(perfect + "\n" + "x" * 10) == pytest.approx(1 - 4 * 0.001 * 10)
    assert call("gsm8k", perfect, gold="4") == 4.0
    assert call("gsm8k", perfect, gold="4.0") == 4.0
    assert call("gsm8k", perfect.replace("4", "1,000"), gold="1000") == 4.0
    assert call("gsm8k", perfect.replace("4", "$-1,000.00"), gold="-1000") == 3.5


def test_gsm8k_tells_the_rule_that_fired() -> None:
    function = rewards.get("gsm8k")()
    texts = ["<answer>4</answer>", r"\boxed{4}", "The answer is 4", "it is 4, see page 12", ""]
    function(["q"] * 5, texts, gold=["4"] * 5)
    assert function.rules == ["answer tag", "box", "answer phrase", "last number", "no answer"]


def test_countdown_reads_boxes_and_its_floor_is_an_option() -> None:
    assert call("countdown", r"so \boxed{2 \times 4 - 3 = 5}") == 1.0
    assert call("countdown", r"<answer>\boxed{2*4-3}</answer>") == 1.0
    assert call("countdown", "<answer>9**9**9</answer>") == 0.1
    assert call("countdown", "<answer>9**9**9</answer>", {"format_score": 0.25}) == 0.25
    assert call("countdown", "<answer>2*4-3</answer>", target="6") == 0.1
    with pytest.raises(SuiteError, match="expected a list of whole numbers and a whole number"):
        call("countdown", "<answer>1</answer>", numbers=[])


def test_sudoku_pays_any_valid_completion_and_refuses_bad_rows() -> None:
    two = {"puzzle": "3040413004000304", "gold": "3241413224131324"}
    assert call("sudoku", "<answer>3241413214232314</answer>", **two) == 1.0
    assert call("sudoku", "<answer>3241413214232314</answer>", {"d1_digits": True}, **two) < 1.0
    assert call("sudoku", "<answer>2431312412434321</answer>") == pytest.approx(7 / 9), "8 right, 1 clue changed"
    with pytest.raises(SuiteError, match="expected 16 digits each"):
        call("sudoku", "<answer>1</answer>", puzzle="123")


@pytest.mark.parametrize(
    "code",
    [
        "-" * 19_000,
        "(" * 19_000,
        "f'{" * 6_000,
        "a." * 9_000 + "a",
        "lambda:" * 2_500 + "1",
        "x" * 30_000,
        "\0",
        "9" * 9_000,
    ],
)
def test_code_that_strains_the_parser_only_gets_a_verdict(code: str) -> None:
    assert code_format.parses(code) in (True, False)
    assert call("code_format", f"```python\n{code}\n```") in (0.5, 1.0)


def test_code_format_wants_one_block_at_the_end() -> None:
    good = "Here it is:\n```python\nprint(1)\n```"
    assert [call("code_format", good + end) for end in ("", "\n", "\n\n  ", "\nDone.", "\n```\n```")] == [1, 1, 1, 0, 0]
    assert call("code_format", "```\nprint(1)\n```") == call("code_format", "print(1)") == 0
    assert code_format.block("```python\nx\n```\n", strict_newline=True) == "x\n"
    assert code_format.block("```python\nx\n```\n\n", strict_newline=True) is None


def test_truncated_responses_can_be_counted_as_wrong() -> None:
    cls = rewards.get("countdown")
    texts, room = ["<answer>2*4-3</answer>"] * 3, [0, 5, 6]
    columns = {"gold": ["5"] * 3, "numbers": [[2, 3, 4]] * 3}
    assert cls()(["q"] * 3, texts, **columns) == [1, 1, 1]
    strict = cls(cls.options_class(truncated_within=5))
    assert strict(["q"] * 3, texts, tokens_left=room, **columns) == [0, 0, 1]
    with pytest.raises(SuiteError, match="column 'tokens_left' is missing"):
        strict(["q"] * 3, texts, **columns)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("countdown", {"format_score": 1}, "format_score: 1; allowed: 0 to below 1"),
        ("countdown", {"format_score": -0.1}, "format_score: -0.1; allowed: a number from 0"),
        ("math", {"seconds": 0}, "seconds: 0; allowed: above 0"),
        ("gsm8k", {"tags": float("inf")}, "tags: inf; allowed: a number from 0"),
        ("exact", {"truncated_within": -1}, "truncated_within: -1"),
    ],
)
def test_options_that_mean_nothing_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rewards.get(name).options_class(**options)


def test_every_reward_is_complete() -> None:
    assert {"exact", "shaped", "gsm8k", "math", "countdown", "sudoku", "code_format"} <= set(rewards.names())
    for name, cls in rewards.rewards().items():
        assert cls.name == name and cls.summary and cls.version >= 1
        assert issubclass(cls.options_class, rewards.Options) and cls.options_class() == cls.options_class()
        assert json.dumps(vars(cls.options_class()))
        assert cls.__module__.endswith(name), "one file per reward, called by its name"
    folder = Path(rewards.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} >= set(rewards.names())
