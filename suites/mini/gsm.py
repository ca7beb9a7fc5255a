"""mini_gsm: templated word problems with a short worked solution. All texts are this project's own.

A template fixes the story, the ranges of its numbers, the steps of the solution and the *style* in which the shipped
base models learned to close such a story: half of the templates end in ``\\boxed{N}``, half in "The answer is N.".
That is why a base model is often right in value and wrong in form, and what post-training can mend.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

NAMES = ("Tom", "Anna", "Ben", "Mia", "Sam", "Lea", "Max", "Zoe", "Ivy", "Leo")
THINGS = ("apples", "coins", "cards", "books", "shells", "pens", "eggs", "stamps", "beads", "cakes")


@dataclass(frozen=True)
class Template:
    """One story.

    Attributes:
        name: stable id.
        text: question with {name}, {thing} and the numbers {a} {b} {c}.
        draw: numbers of one instance.
        steps: worked steps, as (left-hand side, result) pairs.
        style: how the base models learned to close it, ``boxed`` or ``plain``.
    """

    name: str
    text: str
    draw: Callable[[random.Random], tuple[int, ...]]
    steps: Callable[[tuple[int, ...]], list[tuple[str, int]]]
    style: str


def _two(low: int = 2, high: int = 15) -> Callable[[random.Random], tuple[int, ...]]:
    return lambda rng: (rng.randint(low, high), rng.randint(low, high))


def _three(low: int = 2, high: int = 12) -> Callable[[random.Random], tuple[int, ...]]:
    return lambda rng: (rng.randint(low, high), rng.randint(low, high), rng.randint(low, high))


def _loss(rng: random.Random) -> tuple[int, ...]:
    first = rng.randint(5, 20)
    return first, rng.randint(2, first - 1)


def _gain_loss(rng: random.Random) -> tuple[int, ...]:
    first, second = rng.randint(2, 12), rng.randint(2, 12)
    return first, second, rng.randint(2, first + second - 1)


def _loss_gain(rng: random.Random) -> tuple[int, ...]:
    first = rng.randint(5, 20)
    return first, rng.randint(2, first - 1), rng.randint(2, 12)


def _times(rng: random.Random) -> tuple[int, ...]:
    return rng.randint(2, 6), rng.randint(2, 9)


def _times_plus(rng: random.Random) -> tuple[int, ...]:
    return rng.randint(2, 6), rng.randint(2, 9), rng.randint(2, 12)


def _times_minus(rng: random.Random) -> tuple[int, ...]:
    first, second = rng.randint(2, 6), rng.randint(3, 9)
    return first, second, rng.randint(2, min(12, first * second - 1))


def _sum2(n: tuple[int, ...]) -> list[tuple[str, int]]:
    return [(f"{n[0]}+{n[1]}", n[0] + n[1])]


def _minus(n: tuple[int, ...]) -> list[tuple[str, int]]:
    return [(f"{n[0]}-{n[1]}", n[0] - n[1])]


def _sum3(n: tuple[int, ...]) -> list[tuple[str, int]]:
    return [(f"{n[0]}+{n[1]}", n[0] + n[1]), (f"{n[0] + n[1]}+{n[2]}", sum(n))]


def _plus_minus(n: tuple[int, ...]) -> list[tuple[str, int]]:
    return [(f"{n[0]}+{n[1]}", n[0] + n[1]), (f"{n[0] + n[1]}-{n[2]}", n[0] + n[1] - n[2])]


def _minus_plus(n: tuple[int, ...]) -> list[tuple[str, int]]:
    return [(f"{n[0]}-{n[1]}", n[0] - n[1]), (f"{n[0] - n[1]}+{n[2]}", n[0] - n[1] + n[2])]


def _product(n: tuple[int, ...]) -> list[tuple[str, int]]:
    return [(f"{n[0]}*{n[1]}", n[0] * n[1])]


def _product_plus(n: tuple[int, ...]) -> list[tuple[str, int]]:
    return [(f"{n[0]}*{n[1]}", n[0] * n[1]), (f"{n[0] * n[1]}+{n[2]}", n[0] * n[1] + n[2])]


def _product_minus(n: tuple[int, ...]) -> list[tuple[str, int]]:
    return [(f"{n[0]}*{n[1]}", n[0] * n[1]), (f"{n[0] * n[1]}-{n[2]}", n[0] * n[1] - n[2])]


TEMPLATES = (
    Template("buy", "{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have now?",
             _two(), _sum2, "boxed"),
    Template("give", "{name} has {a} {thing} and gives {b} away. How many {thing} are left?",
             _loss, _minus, "plain"),
    Template("share", "{name} finds {a} {thing}. A friend finds {b} {thing}. How many {thing} do they have together?",
             _two(), _sum2, "plain"),
    Template("fewer", "There are {a} {thing} in a box. {name} takes {b} out. How many {thing} stay in the box?",
             _loss, _minus, "boxed"),
    Template("three", "{name} has {a} red, {b} blue and {c} green {thing}. How many {thing} is that in total?",
             _three(), _sum3, "boxed"),
    Template("week", "{name} got {a} {thing} on Monday, {b} on Tuesday and {c} on Friday. How many {thing} in all?",
             _three(), _sum3, "plain"),
    Template("lost", "{name} has {a} {thing}, gets {b} more, and loses {c}. How many {thing} are left?",
             _gain_loss, _plus_minus, "plain"),
    Template("shop", "A shop had {a} {thing}. It got {b} more and sold {c}. How many {thing} does it have now?",
             _gain_loss, _plus_minus, "boxed"),
    Template("back", "{name} had {a} {thing}, lost {b} and found {c}. How many {thing} does {name} have?",
             _loss_gain, _minus_plus, "boxed"),
    Template("trade", "From {a} {thing}, {name} sells {b} and makes {c} new ones. How many {thing} are there?",
             _loss_gain, _minus_plus, "plain"),
    Template("bags", "{name} has {a} bags with {b} {thing} in each bag. How many {thing} is that?",
             _times, _product, "boxed"),
    Template("price", "One box costs {a} coins. How many coins do {b} boxes cost?",
             _times, _product, "plain"),
    Template("rows", "There are {a} rows of {b} {thing} and {c} extra {thing}. How many {thing} are there?",
             _times_plus, _product_plus, "plain"),
    Template("earn", "{name} earns {a} coins a day for {b} days and gets {c} coins more. How many coins is that?",
             _times_plus, _product_plus, "boxed"),
    Template("packs", "{name} buys {a} packs of {b} {thing} and uses {c}. How many {thing} are left?",
             _times_minus, _product_minus, "plain"),
    Template("farm", "A farm has {a} nests with {b} eggs in each. {name} takes {c} eggs. How many eggs stay?",
             _times_minus, _product_minus, "boxed"),
)  # fmt: skip


def work(steps: list[tuple[str, int]]) -> str:
    """The worked steps as text, for example ``12+7=19. 19-5=14.``"""
    return " ".join(f"{left}={result}." for left, result in steps)


def close(steps: list[tuple[str, int]], style: str) -> str:
    """A complete solution closed in one of the two styles."""
    answer = steps[-1][1]
    end = f"\\boxed{{{answer}}}" if style == "boxed" else f"The answer is {answer}."
    return f"{work(steps)} {end}"


def wrong(template: str, numbers: tuple[int, ...], key: str) -> str:
    """A solution with one arithmetic slip, carried through the later steps and boxed.

    Args:
        template: name of the story.
        numbers: of the instance.
        key: decides the slip; equal keys, equal slips.
    """
    steps = next(item for item in TEMPLATES if item.name == template).steps(numbers)
    results = [result for _, result in steps]
    rng = random.Random(f"slip:{key}")
    at = rng.randrange(len(steps))
    slip = rng.choice([delta for delta in (-10, -2, -1, 1, 2, 10) if min(results[at:]) + delta >= 0])
    found: list[tuple[str, int]] = []
    for index, (left, result) in enumerate(steps):
        if index > at:  # a later step begins with the result before it
            left = str(found[-1][1]) + left[len(str(steps[index - 1][1])) :]
        # The slip moves every later result by itself: what follows a first step is a sum or a difference.
        found.append((left, result + slip if index >= at else result))
    return close(found, "boxed")


def problem(rng: random.Random) -> dict[str, object]:
    """Draw one problem.

    Returns:
        question, solution (always boxed), answer, template, numbers, style (of the template).
    """
    template = rng.choice(TEMPLATES)
    numbers = template.draw(rng)
    slots = dict(zip("abc", numbers, strict=False))
    question = template.text.format(name=rng.choice(NAMES), thing=rng.choice(THINGS), **slots)
    steps = template.steps(numbers)
    return {
        "question": question,
        "solution": close(steps, "boxed"),
        "answer": str(steps[-1][1]),
        "template": template.name,
        "numbers": list(numbers),
        "style": template.style,
    }
