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


def misfit(benchmark: Benchmark, cls: type[Reward]) -> str | None:
    """Says why a reward cannot grade the rows of a benchmark; null = it can."""
    if cls.uses_scorer and not benchmark.is_scorable:
        return f"answers of {benchmark.name} cannot be scored: {benchmark.not_scorable or 'its protocol has no scorer'}"
    missing = [name for name in cls.columns if name != "gold" and name not in benchmark.row_columns]
    return f"rows of {benchmark.name} have no column {', '.join(missing)}" if missing else None


def training_functions(
    benchmarks: Sequence[Benchmark], choices: Sequence[Choice] = ()
) -> tuple[list[Any], list[float]]:
    """Returns the functions and weights of a run that may train on several benchmarks.

    Args:
        benchmarks: whose examples are trained on; each example has its benchmark's name in the column ``benchmark``.
        choices: what is paid; empty = the score of each benchmark's protocol.

    Returns:
        (functions, weights), in the order of `choices`; exact is added with weight 0 where it is not among them. A
        function answers null for examples of a benchmark that it cannot grade.

    Raises:
        SuiteError: a reward can grade none of the benchmarks, or a benchmark has no reward with a weight.
    """
    chosen = list(choices) or [Choice(EXACT)]
    functions, weights, paid = [], [], set()
    for choice in chosen:
        cls = registry.get(choice.name)
        fitting = [bench for bench in benchmarks if misfit(bench, cls) is None]
        if not fitting:
            raise SuiteError(f"reward {choice.name!r}: {misfit(benchmarks[0], cls)}")
        paid |= {bench.name for bench in fitting if choice.weight}
        parts = {bench.name: make(bench, choice.name, options=choice.options) for bench in fitting}
        functions.append(_joined(parts, benchmarks))
        weights.append(float(choice.weight))
    for bench in benchmarks:
        if bench.name not in paid:
            raise SuiteError(f"no reward pays for {bench.name}; give one that can grade it, with a weight above 0")
    if all(choice.name != EXACT for choice in chosen):
        parts = {bench.name: part for bench in benchmarks if (part := _exact(bench, chosen)) is not None}
        if parts:
            functions.append(_joined(parts, benchmarks))
            weights.append(0.0)
    return functions, weights


def _exact(benchmark: Benchmark, chosen: Sequence[Choice]) -> Any:
    """Returns what says "right" for a benchmark: its scorer, else a chosen reward's own idea, else null."""
    if misfit(benchmark, registry.get(EXACT)) is None:
        return make(benchmark)
    for choice in chosen:
        cls = registry.get(choice.name)
        if cls.exact is not Reward.exact and misfit(benchmark, cls) is None:
            return OwnExact(make(benchmark, choice.name, options=choice.options), f"{benchmark.name}_{EXACT}")
    return None


def _joined(parts: Mapping[str, Any], benchmarks: Sequence[Benchmark]) -> Any:
    """Returns one function: the only benchmark's, or one that gives each completion to its benchmark's."""
    return next(iter(parts.values())) if len(benchmarks) == 1 else Mixed(parts)


class OwnExact:
    """What a reward itself calls right, as a function: 1 or 0.

    Attributes:
        rules: as of `Reward`; none is told.
    """

    def __init__(self, part: Reward, label: str) -> None:
        self._part = part
        self.rules: list[str] = []
        self.__name__ = label

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Grades completions; see `Reward.__call__`."""
        values = self._part.grade_exact(prompts, completions, **columns)
        self.rules = [""] * len(values)
        return values


class Mixed:
    """One reward on several benchmarks: each completion is judged by the benchmark its prompt came from.

    Attributes:
        rules: as of `Reward`.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts
        self.rules: list[str] = []
        names = [part.__name__.removeprefix(f"{name}_") for name, part in parts.items()]
        self.__name__ = f"{'+'.join(parts)}_{names[0]}"

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Grades completions; the column ``benchmark`` names the judge. See `Reward.__call__`."""
        lists = per_row(columns, len(prompts))
        if "benchmark" not in lists:
            raise SuiteError(f"{self.__name__}: column 'benchmark' is missing; it names the benchmark of each prompt")
        values: list[float | None] = [None] * len(prompts)
        self.rules = [""] * len(prompts)
        for name, part in self._parts.items():
            index = [i for i, owner in enumerate(lists["benchmark"]) if owner == name]
            if not index:
                continue
            own = {key: [column[i] for i in index] for key, column in lists.items()}
            found = part([prompts[i] for i in index], [completions[i] for i in index], **own)
            for i, value, rule in zip(index, found, part.rules, strict=True):
                values[i], self.rules[i] = value, rule
        return values
