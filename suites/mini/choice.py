"""mini_choice: multiple choice over a small table of everyday facts. All texts are this project's own."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """Pairs (key, value) with a question that asks for the value."""

    name: str
    ask: str
    pairs: tuple[tuple[str, str], ...]


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, _, value in (item.partition(":") for item in text.split()))


RELATIONS = (
    Relation("sound", "Which animal says {key}?",
             _pairs("moo:cow woof:dog meow:cat quack:duck oink:pig baa:sheep neigh:horse buzz:bee hiss:snake roar:lion")),
    Relation("young", "What is a young {key} called?",
             _pairs("dog:puppy cat:kitten cow:calf horse:foal sheep:lamb bear:cub duck:duckling goat:kid frog:tadpole")),
    Relation("opposite", "What is the opposite of {key}?",
             _pairs("hot:cold big:small fast:slow up:down day:night wet:dry full:empty old:new happy:sad hard:soft")),
    Relation("color", "What color is {key}?",
             _pairs("grass:green snow:white coal:black blood:red sky:blue gold:yellow chocolate:brown ash:gray")),
    Relation("after", "Which day comes after {key}?",
             _pairs("Monday:Tuesday Tuesday:Wednesday Wednesday:Thursday Thursday:Friday Friday:Saturday "
                    "Saturday:Sunday Sunday:Monday")),
    Relation("month", "Which month comes after {key}?",
             _pairs("January:February February:March March:April April:May May:June June:July July:August "
                    "August:September September:October October:November November:December December:January")),
    Relation("tool", "What do you use to {key}?",
             _pairs("write:pen cut:knife sweep:broom dig:shovel sew:needle paint:brush row:oar eat:fork")),
    Relation("home", "Who lives in a {key}?",
             _pairs("nest:bird hive:bee web:spider den:fox kennel:dog stable:horse shell:snail burrow:rabbit")),
)  # fmt: skip

LETTERS = "ABCD"


def problem(rng: random.Random) -> dict[str, object]:
    """Draw one question with four options.

    Returns:
        question (options included), solution, choices, answer (letter), template (relation), key.
    """
    relation = rng.choice(RELATIONS)
    key, value = rng.choice(relation.pairs)
    others = sorted({other for _, other in relation.pairs if other != value})
    choices = [value, *rng.sample(others, 3)]
    rng.shuffle(choices)
    letter = LETTERS[choices.index(value)]
    options = "\n".join(f"{name}) {choice}" for name, choice in zip(LETTERS, choices, strict=True))
    return {
        "question": f"{relation.ask.format(key=key)}\n{options}",
        "solution": f"It is {value}. \\boxed{{{letter}}}",
        "choices": choices,
        "answer": letter,
        "template": relation.name,
        "key": key,
    }
