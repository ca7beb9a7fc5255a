"""The program in an answer."""

from __future__ import annotations

import json

import pytest
from dare_bench.suites.sandbox import Program, Sandbox, probe
from dare_bench.suites.scoring.code_blocks import (
    blocks,
    called,
    compiles,
    completions,
    entry_point_of,
    extract,
    functions,
    plain,
    reduced,
)

PROMPT = 'from typing import List\n\ndef helper(x):\n    return x\n\ndef add(x: int, y: int):\n    """Adds.\n    """\n'
ADD = "def add(x, y):\n    return x + y"

EXTRACTED = [
    ("bare function", ADD, ADD),
    ("fence", f"```python\n{ADD}\n```", ADD),
    ("capital letter", f"```Python\n{ADD}\n```", ADD),
    ("no language", f"```\n{ADD}\n```", ADD),
    ("other name of the language", f"``` py3\n{ADD}\n```", ADD),
    ("never closed", f"Here it is:\n```python\n{ADD}\n", ADD),
    ("prose around", f"Sure!\n\n```python\n{ADD}\n```\nIt adds.", ADD),
    ("fence behind prose on its line", f"Answer: ```python\n{ADD}\n```", ADD),
    ("last block that defines it", f"```python\n{ADD}\n```\nUse:\n```python\nprint(add(1, 2))\n```", ADD),
    ("later version wins", f"```python\ndef add(x, y): return 0\n```\nBetter:\n```python\n{ADD}\n```", ADD),
    ("broken block is passed over", f"```python\n{ADD}\n```\n```python\ndef add(x, y:\n```", ADD),
    ("language opens a new block", f"```python\nimport math\n```python\n{ADD}\n```", ADD),
    ("indented fence", "1. Do:\n   ```python\n   def add(x, y):\n       return x + y\n   ```", ADD),
    ("end tokens", f"{ADD}\n<|eot_id|><|endoftext|>x", ADD),
    ("few-shot markers", f"[BEGIN]\n '{ADD}' \n[DONE]\nmore", ADD),
    ("line ends of Windows", ADD.replace("\n", "\r\n"), ADD),
    ("tabs", "def add(x, y):\n\treturn x + y", ADD),
    ("prose without fences", f"The function is:\n\n{ADD}\n\nIt adds two numbers.", ADD),
    (
        "helper first",
        f"```python\ndef helper(x):\n    return x\n\n{ADD}\n```",
        f"def helper(x):\n    return x\n\n{ADD}",
    ),
    ("lambda", "```python\nadd = lambda x, y: x + y\n```", "add = lambda x, y: x + y"),
    ("inside a fence on one line", "Use ```add = lambda x, y: x``` here", "add = lambda x, y: x"),
    ("another name", "```python\ndef add_numbers(x, y):\n    return x\n```", None),
    ("return at the top", "```python\ndef add(x): pass\nreturn 1\n```", None),
    ("a method is no function of the module", "```python\nclass A:\n    def add(self): pass\n```", None),
    ("only a call", "```python\nprint(add(1, 2))\n```", None),
    ("nothing", "", None),
    ("empty fences", "``````", None),
    ("zero byte", "```python\ndef add(x): return '\0'\n```", None),
    ("nested too deep", "add = " + "(" * 5000 + "1" + ")" * 5000, None),
]


@pytest.mark.parametrize(("text", "code"), [row[1:] for row in EXTRACTED], ids=[row[0] for row in EXTRACTED])
def test_the_program_is_found(text, code):
    found = extract(text, "add")
    assert found is None if code is None else found.strip() == code


def test_without_an_entry_point_the_last_program_is_taken():
    assert extract("```python\nx = 1\n```\n```python\nx = 2\n```").strip() == "x = 2"


def test_long_answers_are_cut_and_stay_fast():
    assert len(plain("x" * 1_000_000)) == 50_000
    assert extract("```python\n" * 5000, "add") is None
    assert extract("def add(x):\n" * 4000, "add") is None


STRAINS = [
    "-" * 49_000,
    "(" * 49_000,
    "f'{" * 16_000,
    "a." * 24_000 + "a",
    "lambda:" * 7_000 + "1",
    "1" + "+1" * 24_000,
]


@pytest.mark.parametrize("code", STRAINS)
def test_code_that_strains_the_parser_never_raises(code):
    text = f"```python\nadd = lambda x, y: 1\nz = {code}\n```"
    found = extract(text, "add")
    assert found is None or "add" in reduced(found)
    assert len(completions(text, PROMPT, "add")) <= 3


def test_blocks_keep_their_order():
    assert blocks("a\n```python\nx\n```\nb\n```\ny\n```") == ["x\n", "y\n"]
    assert blocks("no fence") == []


def test_a_top_level_return_does_not_compile():
    assert compiles("def f():\n    return 1")
    assert not compiles("return 1")
    assert not compiles("x = '\ud800'")


def test_names_of_a_module():
    assert functions("import a\ndef f(): ...\nasync def g(): ...\nclass C: ...\nh = lambda: 1\nk = f\nn = 3") == list(
        "fgChk"
    )


def test_own_tries_vanish():
    code = (
        "import math\ntry:\n    import numpy\nexcept ImportError:\n    numpy = None\nK = 2\n"
        "def add(x, y):\n    return x + y\nn = int(input())\nprint(add(n, 1))\nassert add(1, 1) == 3\n"
        "if add(1, 2) == 3:\n    print('good')\nfor i in range(3):\n    add(i, i)\n"
        "if __name__ == '__main__':\n    add(1, 2)\n"
    )
    assert reduced(code) == (
        "import math\ntry:\n    import numpy\nexcept ImportError:\n    numpy = None\nK = 2\n\n"
        "def add(x, y):\n    return x + y"
    )


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("    return x + y\n", 1),
        ("return x + y", 1),
        ("z = x\nreturn z + y", 1),
        ("```python\n    z = x\n    return z + y\n```", 1),
        ("z = x\n    return z + y", 1),
        ("```python\ndef add(x: List, y):\n    return helper(x) + y\nprint(add(1, 2))\n```", 1),
        ("I cannot do that.", 0),
        ("", 0),
    ],
)
def test_an_answer_continues_the_prompt(text, count):
    found = completions(text, PROMPT, "add")
    assert len(found) >= count
    results = []
    for program in found[:1]:
        names: dict[str, object] = {}
        exec(program, names)  # programs of this file
        results.append(names["add"](1, 2))
    assert results == [3] * count


def test_the_entry_point_of_tests():
    code = "import math\ndef helper(x): ...\ndef area(r): ..."
    assert entry_point_of(["assert math.isclose(area (2), 3.0)"], code) == "area"
    assert entry_point_of("x = set(area(2))\nassert helper(x)", code) == "area"
    assert entry_point_of(["assert other(2)"], code) is None
    assert called(["assert set(area(1)) == {2}", "assert area(2)", "assert make(3)"]) == "area"
    assert called(["assert len('a')"]) is None


def test_the_grading_cases_have_their_verdicts(reference):
    if not probe("bwrap").is_usable:
        pytest.skip("bubblewrap does not work here")
    rows = [json.loads(line) for line in (reference / "grading_cases" / "code.jsonl").read_text("utf-8").splitlines()]
    owners, programs = [], []
    for row in rows:
        gold = row["gold"]
        if row["benchmark"] == "humaneval":
            name, tests = gold["entry_point"], gold["test"] + f"\ncheck({gold['entry_point']})"
            sources = completions(row["response"], gold["prompt"], name)
        else:
            name, tests = called(gold["test_list"]), gold["test_list"]
            found = extract(row["response"], name)
            sources = [] if found is None else [reduced(found)]
        for source in sources:
            owners.append(row["id"])
            programs.append(Program(source, tests, name, 1.5))
    with Sandbox("bwrap", workers=2) as sandbox:
        outcomes = sandbox.run(programs)
    right = {owner for owner, outcome in zip(owners, outcomes, strict=True) if outcome.passed}
    assert right == {row["id"] for row in rows if row["expected"]}
    assert len(rows) >= 32
