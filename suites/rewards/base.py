"""What a reward is: a function of text and row with options, called by trainers with TRL's signature."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dare_bench.suites.benchmarks.base import Row
from dare_bench.suites.errors import SuiteError
from dare_bench.suites.scoring.boxes import before_end
from dare_bench.suites.scoring.registry import Scorer


@dataclass(frozen=True)
class Options:
    """Options that every reward has; those of one reward extend them.

    Attributes:
        truncated_within: a response that ends within so many tokens of its limit earns 0 (null = the length does not
            matter; 0 = only responses that filled their room). It needs the column ``tokens_left``, which rollouts give.
    """

    truncated_within: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not 0 <= value < float("inf"):
                raise ValueError(f"{field.name}: {value!r}; allowed: a number from 0")


class Reward(ABC):
    """A reward function: call it with ``(prompts, completions, **columns)``.

    A new one is a file of this folder with a subclass under `@reward` that sets the class attributes and has `grade`
    (or `grade_all`, to grade a batch at once). Grading is deterministic, never raises on any text, and time-limited.

    Attributes:
        name: what users write.
        summary: one line for ``dare-bench list``: what is paid for what.
        version: bumped on any change of what is paid.
        options_class: frozen dataclass that extends `Options`, each with a default; `options` is an instance of it.
        columns: columns of the examples that are read; ``gold`` is one of them where it is.
        uses_scorer: whether the scorer of the benchmark's protocol judges; it is then `scorer`.
        rules: the rule that decided about each completion of the last batch (see `note`), for training logs.
        __name__: name in training logs, for example ``mini_gsm_exact``.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    version: ClassVar[int] = 1
    options_class: ClassVar[type[Options]] = Options
    columns: ClassVar[tuple[str, ...]] = ("gold",)
    uses_scorer: ClassVar[bool] = False

    def __init__(self, options: Any = None, *, scorer: Scorer | None = None, label: str = "") -> None:
        """Makes the function.

        Args:
            options: instance of `options_class`; null = its defaults.
            scorer: of the benchmark, for rewards that use one.
            label: name in training logs; empty = `name`.

        Raises:
            SuiteError: a scorer is needed and missing.
        """
        if self.uses_scorer and scorer is None:
            raise SuiteError(
                f"reward {self.name!r} is paid by a benchmark's scorer; give one, or use benchmark.reward()"
            )
        self.options = self.options_class() if options is None else options
        self.scorer = scorer
        self.rules: list[str] = []
        self._rule = ""
        self.__name__ = label or self.name

    @abstractmethod
    def grade(self, text: str, row: Row) -> float | None:
        """Grades one answer.

        Args:
            text: decoded answer up to its first end token.
            row: its row: `gold` and `columns` are read.

        Returns:
            The reward; null = this row is none of its business (left out of the weighted sum).
        """

    def note(self, rule: str) -> None:
        """Says which rule decided about the answer that is being graded; the last word counts."""
        self._rule = rule

    def exact(self, text: str, row: Row) -> float | None:
        """Returns 1 or 0 by this reward's own idea of a right answer; null: it has none.

        It is logged beside the reward where the benchmark has no scorer that could say it.
        """
        return None

    def grade_all(self, texts: Sequence[str], rows: Sequence[Row]) -> list[float | None]:
        """Grades a batch; see `grade`. One that grades in another way may set `rules` itself."""
        values = []
        for text, row in zip(texts, rows, strict=True):
            self._rule = ""
            values.append(self.grade(text, row))
            self.rules.append(self._rule)
        return values

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Grades completions.

        Args:
            prompts: one prompt a completion; only its length is used.
            completions: texts, or lists of chat messages whose last one is the answer.
            **columns: the example's columns as lists, one entry a completion (those of `columns` are needed); further
                arguments of trainers are ignored.

        Returns:
            One reward a completion.

        Raises:
            SuiteError: a column is missing or lengths differ.
        """
        rows = self._rows(prompts, completions, columns)
        self.rules = []
        values = self.grade_all([before_end(text_of(answer)) for answer in completions], rows)
        self.rules = self.rules or [""] * len(rows)
        near = self.options.truncated_within
        if near is not None:
            left = [row.columns["tokens_left"] for row in rows]
            values = [0.0 if room <= near else value for room, value in zip(left, values, strict=True)]
        return values

    def grade_exact(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Returns `exact` of each completion; arguments as of a call."""
        rows = self._rows(prompts, completions, columns)
        texts = [before_end(text_of(answer)) for answer in completions]
        return [self.exact(text, row) for text, row in zip(texts, rows, strict=True)]

    def _rows(self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> list[Row]:
        """Builds the rows of a batch; checks lengths and columns."""
        size = len(completions)
        if len(prompts) != size:
            raise SuiteError(f"{self.__name__}: {len(prompts)} prompts but {size} completions; one each is needed")
        lists = per_row(columns, size)
        needed = self.columns if self.options.truncated_within is None else (*self.columns, "tokens_left")
        for name in needed:
            if name not in lists:
                given = columns.get(name)
                problem = "is missing" if given is None else f"is a {type(given).__name__}, not a list of {size}"
                raise SuiteError(
                    f"{self.__name__}: column {name!r} {problem} (columns: {', '.join(sorted(columns)) or 'none'}); "
                    "train on the examples of training_examples()"
                )
        return [row_at(lists, index) for index in range(size)]


def per_row(columns: Mapping[str, Any], size: int) -> dict[str, Sequence[Any]]:
    """Returns the columns that have one entry a completion; trainers pass other things beside them."""
    return {key: value for key, value in columns.items() if isinstance(value, list | tuple) and len(value) == size}


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
        gold=str(fields.pop("gold", "")),
        columns=fields,
    )
