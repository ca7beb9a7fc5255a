"""Reward `code`: programs of answers, run in the sandbox."""

from __future__ import annotations

import pytest
from dare_bench.suites import rewards
from dare_bench.suites.errors import DataError, SuiteError
from dare_bench.suites.rewards import code as code_module
from dare_bench.suites.rewards.code import CodeOptions
from dare_bench.suites.sandbox import SandboxError, best

TESTS = ["assert add(0, 1) == 1", "assert add(2, 3) == 5", "assert add(7, 5) == 12", "assert add(1, 1) == 2"]
ADD = "def add(x, y):\n    return x + y\n"

ANSWERS = {
    "right": (f"```python\n{ADD}```", 1.0, 1.0),
    "half right": ("```python\ndef add(x, y):\n    return x + y if x > 1 else 0\n```", 0.5, 0.0),
    "wrong": ("```python\ndef add(x, y):\n    return 0\n```", 0.0, 0.0),
    "helper first": ("```python\ndef h(x):\n    return x\ndef add(x, y):\n    return h(x) + y\n```", 1.0, 1.0),
    "no fence": (ADD, 0.0, 1.0),
    "text behind": (f"```python\n{ADD}```\nDone.", 0.0, 1.0),
    "syntax error": ("```python\ndef add(x, y:\n```", 0.0, 0.0),
    "another name": ("```python\ndef plus(x, y):\n    return x + y\n```", 0.0, 0.0),
    "leaves": ("```python\nimport os\nos._exit(0)\ndef add(x, y): ...\n```", 0.0, 0.0),
    "end token": (f"```python\n{ADD}```<|im_end|>rest", 1.0, 1.0),
    "empty": ("", 0.0, 0.0),
}


@pytest.fixture(autouse=True)
def isolated():
    if best().level == "none":
        pytest.skip("no isolation works here")


def columns(count: int, tests: object = TESTS) -> dict[str, list[object]]:
    return {"tests": [tests] * count, "entry_point": ["add"] * count}


def made(**options: object):
    return rewards.get("code")(CodeOptions(**options))


def test_the_share_of_tests_is_paid_where_the_form_is_right():
    reward = made()
    texts = [text for text, _, _ in ANSWERS.values()]
    found = reward(["p"] * len(texts), texts, **columns(len(texts)), trainer_state=None)
    assert dict(zip(ANSWERS, found, strict=True)) == {name: value for name, (_, value, _) in ANSWERS.items()}
    assert dict(zip(ANSWERS, reward.rules, strict=True)) == {
        **dict.fromkeys(ANSWERS, "no program"),
        **dict.fromkeys(("right", "helper first", "end token"), "passed"),
        **dict.fromkeys(("half right", "wrong"), "failed"),
        "leaves": "crashed, flagged",
    }
    exact = reward.grade_exact(["p"] * len(texts), texts, **columns(len(texts)))
    assert dict(zip(ANSWERS, exact, strict=True)) == {name: value for name, (_, _, value) in ANSWERS.items()}


def test_the_form_can_be_left_out_and_all_tests_be_asked_for():
    texts = [ANSWERS["no fence"][0], ANSWERS["half right"][0]]
    assert made(require_format=False)(["p"] * 2, texts, **columns(2)) == [1.0, 0.5]
    assert made(require_format=False, all_tests=True)(["p"] * 2, texts, **columns(2)) == [1.0, 0.0]


def test_tests_may_be_one_text():
    text = "def check(c):\n    assert c(1, 2) == 3\ncheck(add)\nassert add(2, 2) == 5\n"
    assert made()(["p"], [ANSWERS["right"][0]], **columns(1, text)) == [0.5]


def test_chat_messages_are_read():
    message = [{"role": "assistant", "content": ANSWERS["right"][0]}]
    assert made()(["p"], [message], **columns(1)) == [1.0]


def test_the_same_program_is_run_once(monkeypatch):
    sizes = []
    real = code_module.shared()
    run = real.run
    monkeypatch.setattr(real, "run", lambda programs: (sizes.append(len(programs)), run(programs))[1])
    text = "```python\ndef add(x, y):\n    return x + y + 0 * 12345\n```"
    reward = made()
    assert reward(["p"] * 4, [text] * 4, **columns(4)) == [1.0] * 4
    assert reward.grade_exact(["p"] * 2, [text] * 2, **columns(2)) == [1.0] * 2
    assert sizes == [1]


def test_time_is_limited_for_the_program():
    text = "```python\ndef add(x, y):\n    while x == 7: pass\n    return x + y\n```"
    assert made(timeout=0.8)(["p"], [text], **columns(1)) == [0.5]


def test_bad_rows_and_options_are_named():
    with pytest.raises(SuiteError, match="column 'tests'"):
        made()(["p"], ["x"], entry_point=["add"])
    with pytest.raises(DataError, match="entry_point is"):
        made()(["p"], [ANSWERS["right"][0]], tests=[TESTS], entry_point=["add(x)"])
    with pytest.raises(DataError, match="tests is"):
        made()(["p"], [ANSWERS["right"][0]], tests=[[]], entry_point=["add"])
    for options in ({"timeout": 0}, {"workers": 0}, {"level": "jail"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            CodeOptions(**options)


def test_no_isolation_is_refused_and_not_paid_as_wrong():
    with pytest.raises(SandboxError, match="allow_unsafe=True"):
        made(level="none")(["p"], [ANSWERS["right"][0]], **columns(1))


def test_mini_code_rows_can_be_trained_on():
    from dare_bench.suites.benchmarks import registry

    bench = registry.get("mini_code")
    examples = bench.training_examples("train", limit=8)
    answers = [f"```python\n{example['completion']}\n```" for example in examples]
    lists = {key: [example[key] for example in examples] for key in ("tests", "entry_point", "gold")}
    assert rewards.make(bench, "code")([""] * 8, answers, **lists) == [1.0] * 8
