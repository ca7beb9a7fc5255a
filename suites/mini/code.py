"""mini_code: one-line Python functions with asserts. All texts are this project's own.

Reference solutions are run when the files are built; model-written code is run by nothing here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """One kind of function: description and body may hold {k}, a small constant; `cases` draws arguments."""

    name: str
    text: str
    arguments: str
    body: str
    cases: Callable[[random.Random], tuple[Any, ...]]


def _number(rng: random.Random) -> tuple[Any, ...]:
    return (rng.randint(-9, 20),)


def _numbers(rng: random.Random) -> tuple[Any, ...]:
    return (rng.randint(-9, 20), rng.randint(-9, 20))


def _list(rng: random.Random) -> tuple[Any, ...]:
    return ([rng.randint(-9, 20) for _ in range(rng.randint(1, 5))],)


def _word(rng: random.Random) -> tuple[Any, ...]:
    return ("".join(rng.choice("abcdeimnorst") for _ in range(rng.randint(1, 6))),)


TASKS = (
    Task("add", "returns x plus {k}", "x", "x + {k}", _number),
    Task("sub", "returns x minus {k}", "x", "x - {k}", _number),
    Task("mul", "returns x times {k}", "x", "x * {k}", _number),
    Task("mod", "returns the rest of x divided by {k}", "x", "x % {k}", _number),
    Task("more", "tells whether x is more than {k}", "x", "x > {k}", _number),
    Task("less", "tells whether x is less than {k}", "x", "x < {k}", _number),
    Task("even", "tells whether x is even", "x", "x % 2 == 0", _number),
    Task("square", "returns the square of x", "x", "x * x", _number),
    Task("sum", "returns the sum of x and y", "x, y", "x + y", _numbers),
    Task("product", "returns the product of x and y", "x, y", "x * y", _numbers),
    Task("max", "returns the larger of x and y", "x, y", "max(x, y)", _numbers),
    Task("min", "returns the smaller of x and y", "x, y", "min(x, y)", _numbers),
    Task("total", "returns the sum of the list x plus {k}", "x", "sum(x) + {k}", _list),
    Task("count", "returns the length of the list x plus {k}", "x", "len(x) + {k}", _list),
    Task("last", "returns the last item of the list x times {k}", "x", "x[-1] * {k}", _list),
    Task("top", "returns the largest item of the list x minus {k}", "x", "max(x) - {k}", _list),
    Task("turn", "returns the string x turned around", "x", "x[::-1]", _word),
    Task("repeat", "returns the string x repeated {k} times", "x", "x * {k}", _word),
)

VERBS = ("Write a function {f}({args}) that {text}.", "Define {f}({args}). It {text}.", "Code {f}({args}): it {text}.")
NAMES = ("f", "g", "h", "calc", "solve", "run", "get", "make", "work", "step", "fun", "go", "do_it", "apply", "task")


def problem(rng: random.Random) -> dict[str, object]:
    """Draw one task.

    Returns:
        question, solution (a one-line function), entry_point, tests (three asserts), template, numbers.
    """
    task = rng.choice(TASKS)
    constant = rng.randint(2, 20)
    name = rng.choice(NAMES)
    body = task.body.format(k=constant)
    question = rng.choice(VERBS).format(f=name, args=task.arguments, text=task.text.format(k=constant))
    function = eval(f"lambda {task.arguments}: {body}")  # our own table above, never foreign text
    tests = []
    for _ in range(3):
        values = task.cases(rng)
        shown = ", ".join(repr(value) for value in values)
        tests.append(f"assert {name}({shown}) == {function(*values)!r}")
    return {
        "question": question,
        "solution": f"def {name}({task.arguments}): return {body}",
        "answer": body,
        "entry_point": name,
        "tests": tests,
        "template": task.name,
        "numbers": [constant],
    }
