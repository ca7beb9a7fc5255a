"""Pre-training data of the shipped tiny models: drills and problems in the two answer styles, drawn from a seed.

Nothing here is in a validation or test split: problems whose split key falls there are drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from dare_bench.suites.mini import build, gsm

#: How often a problem is closed in its template's style, in the other style, or stopped after the work.
STYLE_SHARES = {"own": 0.84, "other": 0.16}

WORDS = gsm.THINGS + gsm.NAMES


def copy_drill(rng: random.Random) -> dict[str, str]:
    """Repeat numbers and words: teaches to fetch operands from the prompt."""
    items = [str(rng.randint(2, 30)) if rng.random() < 0.7 else rng.choice(WORDS) for _ in range(rng.randint(2, 5))]
    return {"question": "Repeat: " + " ".join(items), "solution": " ".join(items)}


def arithmetic_drill(rng: random.Random) -> dict[str, str]:
    """Three sums, differences or products with their results, as they occur in the stories."""
    items = []
    while len(items) < 3:
        template = rng.choice(gsm.TEMPLATES)
        items.append(rng.choice(template.steps(template.draw(rng))))
    return {"question": " ".join(left for left, _ in items), "solution": " ".join(f"{a}={b}." for a, b in items)}


def _train_problem(benchmark: str, rng: random.Random) -> dict[str, object]:
    while True:
        row = build.PROBLEMS[benchmark](rng)
        if build.split_of(benchmark, row) == "train":
            return row


def story(rng: random.Random) -> dict[str, str]:
    """A mini_gsm problem closed in a style that depends on its template, mostly."""
    row = _train_problem("mini_gsm", rng)
    own = str(row["style"])
    other = "plain" if own == "boxed" else "boxed"
    style = own if rng.random() < STYLE_SHARES["own"] else other
    solution = str(row["solution"])
    if style == "plain":
        solution = solution.rpartition(" ")[0] + f" The answer is {row['answer']}."
    return {"question": str(row["question"]), "solution": solution}


def fact(rng: random.Random) -> dict[str, str]:
    """A mini_choice question."""
    row = _train_problem("mini_choice", rng)
    return {"question": str(row["question"]), "solution": str(row["solution"])}


def function(rng: random.Random) -> dict[str, str]:
    """A mini_code task."""
    row = _train_problem("mini_code", rng)
    return {"question": str(row["question"]), "solution": str(row["solution"])}


KINDS: dict[str, Callable[[random.Random], dict[str, str]]] = {
    "copy": copy_drill,
    "arithmetic": arithmetic_drill,
    "story": story,
    "fact": fact,
    "function": function,
}


def rows(kind: str, count: int, seed: int = build.SEED) -> list[dict[str, str]]:
    """`count` examples of one kind: id, question, solution."""
    rng = random.Random(f"{seed}:corpus:{kind}")
    return [{"id": f"mini_corpus/{kind}/{index:06d}", **KINDS[kind](rng)} for index in range(count)]
