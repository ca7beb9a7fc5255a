"""What a scorer is, and the table of all scorers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dare_bench.suites.registry import Registry, decorator

if TYPE_CHECKING:
    from dare_bench.suites.benchmarks.base import Row

#: Longest stored extract, in characters: a hostile answer must not fill the database twice.
MAX_EXTRACT_CHARS = 200


@dataclass(frozen=True)
class Verdict:
    """What a scorer says about one answer.

    Attributes:
        value: the headline in [0, 1]; equals ``metrics[scorer.headline]``.
        metrics: ``strict`` (right and in the requested form) and ``value`` (right in any readable form), each 0 or 1;
            strict is never above value.
        extracted: what was read as the answer, or null.
        status: ``scored`` or ``no_answer`` (nothing was found; it counts as wrong).
        detail: why, in words; starts with the rule that fired (``box: ...``, ``last number: ...``).
        in_form: whether the answer has the requested form, right or wrong (shaped rewards use it).
    """

    value: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    extracted: str | None = None
    status: str = "scored"
    detail: str | None = None
    in_form: bool = False


class Scorer(ABC):
    """Grades texts. Pure and deterministic, never raises on any text, and linear in its length.

    Attributes:
        name: identifier in protocols and in the store.
        version: bumped on any change of behaviour.
        headline: the metric that is the score of the protocol (``strict`` or ``value``).
        summary: one line for ``dare-bench list``.
    """

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    headline: ClassVar[str] = "strict"
    summary: ClassVar[str] = ""

    @abstractmethod
    def score(self, text: str, row: Row) -> Verdict:
        """Grades one answer.

        Args:
            text: the model's answer as decoded, special tokens possibly left in.
            row: the row it answers; `gold` and `columns` are read.

        Returns:
            The verdict.
        """

    def score_all(self, texts: Sequence[str], rows: Sequence[Row]) -> list[Verdict]:
        """Grades answers, each as `score` does."""
        return [self.score(text, row) for text, row in zip(texts, rows, strict=True)]

    def refusal(self) -> str | None:
        """Says why this machine cannot grade, with the next step; null = it can."""
        return None

    def verdict(
        self, *, is_strict: bool, is_right: bool, extracted: str | None, detail: str, in_form: bool = False
    ) -> Verdict:
        """Builds a verdict with this scorer's headline.

        Args:
            is_strict: right and in the requested form.
            is_right: right in any readable form.
            extracted: what was read, or null for "no answer".
            detail: the rule that fired and why.
            in_form: whether the requested form is there.

        Returns:
            The verdict; unprintable characters of the extract are replaced, its length is limited.
        """
        metrics = {"strict": float(is_strict), "value": float(is_right)}
        return Verdict(
            value=metrics[self.headline],
            metrics=metrics,
            extracted=None if extracted is None else printable(extracted),
            status="no_answer" if extracted is None else "scored",
            detail=printable(detail),
            in_form=in_form,
        )


def printable(text: str, limit: int = MAX_EXTRACT_CHARS) -> str:
    """Returns text that any database and page can hold: one line, no control characters, at most `limit` long."""
    short = " ".join(text[: 4 * limit].split())
    short = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in short)
    return short if len(short) <= limit else short[: limit - 1] + "…"


_REGISTRY: Registry[Scorer] = Registry(
    "scorer", "dare_bench.suites.scoring", Path(__file__).resolve().parent, skip=("registry",)
)

#: Class decorator: registers one instance under the class attribute `name`.
scorer = decorator(_REGISTRY)


def names() -> list[str]:
    """Returns the sorted names of all scorers."""
    return _REGISTRY.names()


def scorers() -> dict[str, Scorer]:
    """Returns all scorers by name."""
    return _REGISTRY.entries()


def get(name: str) -> Scorer:
    """Returns the scorer of a name.

    Raises:
        UnknownNameError: no such scorer; the message carries the nearest name.
    """
    return _REGISTRY.get(name)
