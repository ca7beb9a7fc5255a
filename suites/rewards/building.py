"""Reward functions of a training run: chosen rewards on the benchmarks that are trained on, exact among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dare_bench.suites.benchmarks.base import Benchmark
from dare_bench.suites.errors import SuiteError
from dare_bench.suites.rewards import registry
from dare_bench.suites.rewards.base import Reward, per_row

EXACT = "exact"


@dataclass(frozen=True)
class Choice:
    """A reward with its weight and the options that differ from its defaults."""

    name: str
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)


def make(
    benchmark: Benchmark, name: str = EXACT, *, protocol: str | None = None, options: Mapping[str, Any] | None = None
) -> Reward:
    """Builds a reward function for a benchmark.

    Args:
        benchmark: the benchmark whose training split is used.
        name: of the reward.
        protocol: protocol whose scorer judges, for rewards that use one; null = default.
        options: options of the reward.

    Returns:
        The reward function.

    Raises:
        UnknownNameError: no such reward.
        NotScorableError: the reward needs a scorer and the benchmark has none.
        SuiteError: an option does not fit.
    """
    cls = registry.get(name)
    scorer = benchmark.scorer(protocol) if cls.uses_scorer else None
    try:
        chosen = cls.options_class(**(options or {}))
    except (TypeError, ValueError) as error:
        raise SuiteError(f"reward {name!r}: {error}") from error
    return cls(chosen, scorer=scorer, label=f"{benchmark.name}_{name}")


def reward_functions(
    benchmark: Benchmark, name: str = EXACT, *, protocol: str | None = None
) -> tuple[list[Reward], list[float]]:
    """Returns the functions and weights of one paid reward; exact is always among them, so that it is logged.

    Args:
        benchmark: the benchmark whose training split is used.
        name: what is paid.
        protocol: see `make`.

    Returns:
        (functions, weights), the paid one first with weight 1, exact beside another one with weight 0.
    """
    paid = make(benchmark, name, protocol=protocol)
    if name == EXACT:
        return [paid], [1.0]
    return [paid, make(benchmark, EXACT, protocol=protocol)], [1.0, 0.0]


def training_functions(
    benchmarks: Sequence[Benchmark], choices: Sequence[Choice] = ()
) -> tuple[list[Any], list[float]]:
    """Returns the functions and weights of a run that may train on several benchmarks.

    Args:
        benchmarks: whose examples are trained on; each example has its benchmark's name in the column ``benchmark``.
        choices: what is paid; empty = the score of each benchmark's protocol.

    Returns:
        (functions, weights), in the order of `choices`; exact is added with weight 0 where it is not paid. A function
        answers null for examples of a benchmark that it cannot grade.

    Raises:
        SuiteError: a reward can grade none of the benchmarks.
    """
    chosen = list(choices) or [Choice(EXACT)]
    functions, weights = [], []
    for choice in chosen:
        parts = {}
        for bench in benchmarks:
            parts[bench.name] = make(bench, choice.name, options=choice.options)
        functions.append(_joined(parts, choice.name))
        weights.append(float(choice.weight))
    if all(choice.name != EXACT for choice in chosen):
        functions.append(_joined({bench.name: make(bench) for bench in benchmarks}, EXACT))
        weights.append(0.0)
    return functions, weights


def _joined(parts: Mapping[str, Any], name: str) -> Any:
    """Returns one function: the only part, or each benchmark's own."""
    return next(iter(parts.values())) if len(parts) == 1 else Mixed(parts, name)


class Mixed:
    """One reward on several benchmarks: each completion is judged by the benchmark its prompt came from."""

    def __init__(self, parts: Mapping[str, Any], name: str) -> None:
        self._parts = parts
        self.__name__ = f"{'+'.join(parts)}_{name}"

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Grades completions; the column ``benchmark`` names the judge. See `Reward.__call__`."""
        lists = per_row(columns, len(prompts))
        values: list[float | None] = [None] * len(prompts)
        for name, part in self._parts.items():
            index = [i for i, owner in enumerate(lists["benchmark"]) if owner == name]
            if not index:
                continue
            own = {key: [column[i] for i in index] for key, column in lists.items()}
            found = part([prompts[i] for i in index], [completions[i] for i in index], **own)
            for i, value in zip(index, found, strict=True):
                values[i] = value
        return values
