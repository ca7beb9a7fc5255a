"""`exact`: what the table counts, computed beside every paid reward."""

from __future__ import annotations

from dare_bench.suites.benchmarks.base import Row
from dare_bench.suites.rewards.base import Reward
from dare_bench.suites.rewards.registry import reward


@reward
class Exact(Reward):
    """The score of the benchmark's protocol."""

    name = "exact"
    summary = "the protocol's score: 1 if the table counts the answer as right, else 0"
    uses_scorer = True

    def grade(self, text: str, row: Row) -> float:
        """Returns the headline of the scorer's verdict; its first words name the rule that fired."""
        verdict = self.scorer.score(text, row)
        self.note((verdict.detail or verdict.status).partition(":")[0])
        return float(verdict.value)
