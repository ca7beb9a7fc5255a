"""Which answers a cell page shows, and the word for an outcome."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dare_bench.leaderboard.source import Answer

#: Answers shown on a page, and how many of them correct and wrong; the rest is filled with other outcomes first.
N_SHOWN, N_CORRECT, N_WRONG = 60, 20, 20


def verdict_word(value: float | None, status: str | None) -> str:
    """Outcome of one answer in words, from its headline score and the scorer's status."""
    if value is None or status is None:
        return "not scored"
    if value >= 1.0:
        return "correct"
    if value > 0.0:
        return "partly correct"
    return {"scored": "wrong"}.get(status, status.replace("_", " "))


def stratified(light: Sequence[Answer]) -> list[Answer]:
    """Choose the answers a page shows: 20 correct, 20 wrong, then the other outcomes, then more of any.

    The order is that of a hash of the sample id, so that pages of one benchmark show the same questions where they
    can, whatever the model.

    Args:
        light: all answers.

    Returns:
        At most `N_SHOWN` answers, by sample id.
    """
    ordered = sorted(
        light, key=lambda a: (hashlib.sha256(a.sample_id.encode("utf-8", "replace")).hexdigest(), a.repeat)
    )
    words = {id(a): verdict_word(a.value, a.status) for a in ordered}
    correct = [a for a in ordered if words[id(a)] == "correct"][:N_CORRECT]
    wrong = [a for a in ordered if words[id(a)] == "wrong"][:N_WRONG]
    other = [a for a in ordered if words[id(a)] not in ("correct", "wrong")]
    chosen = [*correct, *wrong, *other][:N_SHOWN]
    taken = {id(a) for a in chosen}
    chosen += [a for a in ordered if id(a) not in taken][: N_SHOWN - len(chosen)]
    return sorted(chosen, key=lambda a: (a.sample_id, a.repeat))


def viewer_answer(light: Sequence[Answer]) -> Answer | None:
    """The first correct answer with a stored trajectory, else the first one with a trajectory, else None."""
    stored = [a for a in light if a.has_trajectory]
    return next((a for a in stored if a.value is not None and a.value >= 1.0), stored[0] if stored else None)
