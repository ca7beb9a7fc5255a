"""What a reward is: a function of text and row with options, called by trainers with TRL's signature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dare_bench.suites.benchmarks.base import Row
from dare_bench.suites.errors import SuiteError
from dare_bench.suites.scoring.boxes import before_end
from dare_bench.suites.scoring.registry import Scorer


@dataclass(frozen=True)
class NoOptions:
    """A reward without options. Options are a frozen dataclass whose `__post_init__` may raise ValueError."""


class Reward(ABC):
    """A reward function: call it with ``(prompts, completions, **columns)``.

    A new one is a file of this folder with a subclass under `@reward` that sets the class attributes and has `grade`
    (or `grade_all`, to grade a batch at once). Grading is deterministic, never raises on any text, and time-limited.

    Attributes:
        name: what users write.
        summary: one line for ``dare-bench list``: what is paid for what.
        version: bumped on any change of what is paid.
        options_class: frozen dataclass of options, each with a default; `options` is an instance of it.
        columns: columns of the examples that are read; ``gold`` is one of them where it is.
        uses_scorer: whether the scorer of the benchmark's protocol judges; it is then `scorer`.
        __name__: name in training logs, for example ``mini_gsm_exact``.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    version: ClassVar[int] = 1
    options_class: ClassVar[type] = NoOptions
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

    def exact(self, text: str, row: Row) -> float | None:
        """Returns 1 or 0 by this reward's own idea of a right answer; null: it has none.

        It is logged beside the reward where the benchmark has no scorer that could say it.
        """
        return None

    def grade_all(self, texts: Sequence[str], rows: Sequence[Row]) -> list[float | None]:
        """Grades a batch; see `grade`."""
        return [self.grade(text, row) for text, row in zip(texts, rows, strict=True)]

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
        return self.grade_all([before_end(text_of(answer)) for answer in completions], rows)

    def _rows(self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> list[Row]:
        """Builds the rows of a batch; checks lengths and columns."""
        size = len(completions)
        if len(prompts) != size:
            raise SuiteError(f"{self.__name__}: {len(prompts)} prompts but {size} completions; one each is needed")
        lists = per_row(columns, size)
        for name in self.columns:
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
