"""Tests as units, and the ones that must fail."""

from __future__ import annotations

import pytest
from dare_bench.suites.errors import DataError
from dare_bench.suites.sandbox.units import Unit, imported, mentioned, traps, units


def test_a_list_is_one_unit_each():
    found = units(["import math", "assert f(1) == 2", "x = f(2)\nassert x == 3"])
    assert [unit.counts for unit in found] == [False, True, True]
    assert imported(found) == {"math"}


def test_a_text_is_split_into_statements():
    text = "import math\ndef check(c):\n    assert c(1)\nx = 1\ncheck(f)\nfor i in [1]:\n    assert f(i)\n"
    assert [unit.counts for unit in units(text)] == [False, False, False, True, True]


def test_a_text_without_asserts_is_one_unit():
    assert units("x = f(1)\nif x != 2:\n    raise ValueError") == [
        Unit("x = f(1)\nif x != 2:\n    raise ValueError", True)
    ]


@pytest.mark.parametrize("tests", ["assert f(", ["assert f("], [], "", "\0"])
def test_broken_tests_are_refused(tests):
    with pytest.raises(DataError):
        units(tests)


CHANGED = [
    ("assert f(1) == 2", lambda f: 2),
    ("assert 2 == f(1)", lambda f: 2),
    ("assert f(1) == -2.5", lambda f: -2.5),
    ("assert f(1) == True", lambda f: True),
    ("assert f(1) is False", lambda f: False),
    ("assert f(1) == None", lambda f: None),
    ("assert f(1) == ''", lambda f: ""),
    ("assert f(1) == 'abc'", lambda f: "abc"),
    ("assert f(1) == b'a'", lambda f: b"a"),
    ("assert f(1) == []", lambda f: []),
    ("assert f(1) == [1, (2, 'a')]", lambda f: [1, (2, "a")]),
    ("assert f(1) == {}", lambda f: {}),
    ("assert f(1) == {1: 2}", lambda f: {1: 2}),
    ("assert f(1) == {1, 2}", lambda f: {1, 2}),
    ("assert len(f(1)) == 3", lambda f: "abc"),
    ("assert abs(f(1) - 2.0) < 0.001", lambda f: 2.0),
    ("import math\nassert math.isclose(f(1), 2.0, rel_tol=0.001)", lambda f: 2.0),
    ("assert f(1) == 2 and f(1) < 3", lambda f: 2),
    ("for i in range(3):\n    assert f(i) == 1", lambda f: 1),
    ("assert f(1) == 1e308", lambda f: 1e308),
]


@pytest.mark.parametrize(("test", "answer"), CHANGED)
def test_a_changed_expectation_fails_an_honest_answer(test, answer):
    found = traps(units([test]), [True], "program")
    assert len(found) == 2
    names = {"f": lambda *_: answer(None)}
    exec(test, dict(names))  # the test itself passes
    with pytest.raises(AssertionError):
        exec(found[0].code, dict(names))
    assert found[1].code == "assert False"


@pytest.mark.parametrize(
    "test",
    [
        "assert f(1)",
        "assert not f(1) == 2",
        "assert f(1) != 2",
        "assert f(1) > 2",
        "assert f(1) == g(1)",
        "assert 1 == 1",
    ],
)
def test_tests_without_an_expected_value_are_left_alone(test):
    assert traps(units([test]), [True], "program") == [Unit("assert False", True)]


def test_only_tests_that_passed_are_changed():
    pieces = units(["assert f(1) == 2", "assert f(2) == 3", "assert f(3) == 4"])
    assert len(traps(pieces, [True, False], "program")) == 2


def test_a_check_function_comes_with_its_call():
    pieces = units("def check(c):\n    assert c(1) == 2\n    assert c(2) == 3\ncheck(f)\n")
    changed = traps(pieces, [True], "program")[0].code
    assert "def check(c)" in changed
    assert changed.endswith("check(f)")
    with pytest.raises(AssertionError):
        exec(changed, {"f": lambda x: x + 1})


def test_names_that_tests_may_use():
    pieces = units(["import math", "assert f(helper(1)) == math.floor(2.5) and len('a') == other(1)"])
    source = "def helper(x): ...\ndef f(x): ...\ndef len(x): ..."
    assert mentioned(pieces, source, "f") == ["f", "helper"]
