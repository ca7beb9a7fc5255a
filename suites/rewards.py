"""Rewards built from a benchmark's scorer, with the reward-function signature of TRL.

What a policy is paid and what a table reports are graded by the same code. Beside a shaped reward the exact one is
always computed, with weight 0, so that the training log shows both and paying for form alone is seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dare_bench.suites.benchmarks.base import Benchmark, Row
from dare_bench.suites.errors import SuiteError, unknown_name
from dare_bench.suites.scoring.registry import Scorer, Verdict

#: Kinds of rewards and what they pay.
KINDS = {
    "exact": "1 if the protocol's score is 1, else 0",
    "shaped": "1 if exact; 0.3 for the right value in another form; 0.1 for a wrong answer in the right form; else 0",
}

#: Credit for the right value that the protocol does not count, because its form is another one.
VALUE_CREDIT = 0.3
#: Credit for a wrong answer in the requested form. Below VALUE_CREDIT: form alone must not outbid the right value.
FORM_CREDIT = 0.1


class Reward:
    """A reward function: call it with ``(prompts, completions, **columns)``.

    Attributes:
        kind: ``exact`` or ``shaped``.
        __name__: name in training logs, for example ``mini_gsm_exact``.
    """

    def __init__(self, benchmark: str, kind: str, scorer: Scorer) -> None:
        self.kind = kind
        self.__name__ = f"{benchmark}_{kind}"
        self._scorer = scorer

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """Grades completions.

        Args:
            prompts: one prompt a completion; only its length is used.
            completions: texts, or lists of chat messages whose last one is the answer.
            **columns: the example's columns as lists, one entry a completion (``gold`` is needed); further
                arguments of trainers are ignored.

        Returns:
            One reward in [0, 1] a completion.

        Raises:
            SuiteError: ``gold`` is missing or lengths differ.
        """
        size = len(completions)
        if len(prompts) != size:
            raise SuiteError(f"{self.__name__}: {len(prompts)} prompts but {size} completions; one each is needed")
        lists = {key: value for key, value in columns.items() if isinstance(value, list | tuple) and len(value) == size}
        if "gold" not in lists:
            given = columns.get("gold")
            problem = "is missing" if given is None else f"is a {type(given).__name__}, not a list of {size}"
            raise SuiteError(
                f"{self.__name__}: column 'gold' {problem} (columns: {', '.join(sorted(columns)) or 'none'}); "
                "train on the examples of training_examples()"
            )
        return [self._grade(text_of(answer), row_at(lists, index)) for index, answer in enumerate(completions)]

    def _grade(self, text: str, row: Row) -> float:
        """Returns the reward of one answer."""
        verdict = self._scorer.score(text, row)
        return shaped(verdict) if self.kind == "shaped" else float(verdict.value)


def make(benchmark: Benchmark, kind: str = "exact", *, protocol: str | None = None) -> Reward:
    """Builds a reward function from a benchmark's scorer.

    Args:
        benchmark: the benchmark whose training split is used.
        kind: one of `KINDS`.
        protocol: protocol whose scorer judges; null = default.

    Returns:
        The reward function.

    Raises:
        UnknownNameError: no such kind.
        NotScorableError: the benchmark has no scorer.
    """
    if kind not in KINDS:
        raise unknown_name("reward", kind, KINDS)
    return Reward(benchmark.name, kind, benchmark.scorer(protocol))


def reward_functions(
    benchmark: Benchmark, kind: str = "exact", *, protocol: str | None = None
) -> tuple[list[Reward], list[float]]:
    """Returns the reward functions and weights of a training run; exact is always among them, so that it is logged.

    Args:
        benchmark: the benchmark whose training split is used.
        kind: what is paid, one of `KINDS`.
        protocol: see `make`.

    Returns:
        (functions, weights), the paid one first with weight 1, exact beside a shaped one with weight 0.
    """
    paid = make(benchmark, kind, protocol=protocol)
    if kind == "exact":
        return [paid], [1.0]
    return [paid, make(benchmark, "exact", protocol=protocol)], [1.0, 0.0]


def shaped(verdict: Verdict) -> float:
    """Returns the shaped reward of a verdict: see `KINDS`.

    `exact` is logged beside it; a floor for form alone invites hacking, so it is small.
    """
    if verdict.value >= 1.0:
        return 1.0
    if verdict.metrics.get("value", 0.0) >= 1.0:
        return VALUE_CREDIT
    return FORM_CREDIT if verdict.in_form else 0.0


def text_of(completion: Any) -> str:
    """Returns the text of a completion: itself, or the content of the last message of a conversation.

    Raises:
        SuiteError: it is neither.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and completion:
        last = completion[-1]
        if isinstance(last, Mapping) and isinstance(last.get("content"), str):
            return last["content"]
    raise SuiteError(f"completion {str(completion)[:80]!r} is neither text nor a list of chat messages")


def row_at(lists: Mapping[str, Sequence[Any]], index: int) -> Row:
    """Builds the row of one completion from the columns of a batch."""
    fields = {key: values[index] for key, values in lists.items()}
    return Row(
        id=str(fields.pop("id", index)),
        question=str(fields.pop("question", "")),
        gold=str(fields.pop("gold")),
        columns=fields,
    )
