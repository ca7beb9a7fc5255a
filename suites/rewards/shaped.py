"""`shaped`: partial credit for the right value in another form, and for the form alone."""

from __future__ import annotations

from dare_bench.suites.benchmarks.base import Row
from dare_bench.suites.rewards.base import Reward
from dare_bench.suites.rewards.registry import reward
from dare_bench.suites.scoring.registry import Verdict

#: Credit for the right value that the protocol does not count, because its form is another one.
VALUE_CREDIT = 0.3
#: Credit for a wrong answer in the requested form. Below VALUE_CREDIT: form alone must not outbid the right value.
FORM_CREDIT = 0.1


@reward
class Shaped(Reward):
    """The score of the protocol with credit for what comes near."""

    name = "shaped"
    summary = "1 if exact; 0.3 for the right value in another form; 0.1 for a wrong answer in the right form; else 0"
    uses_scorer = True

    def grade(self, text: str, row: Row) -> float:
        """Returns the credit of the scorer's verdict."""
        return shaped(self.scorer.score(text, row))


def shaped(verdict: Verdict) -> float:
    """Returns the shaped reward of a verdict; a floor for form alone invites hacking, so it is small."""
    if verdict.value >= 1.0:
        return 1.0
    if verdict.metrics.get("value", 0.0) >= 1.0:
        return VALUE_CREDIT
    return FORM_CREDIT if verdict.in_form else 0.0
