"""What a comparison with recorded values found. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """One recorded case.

    Attributes:
        subject: what was compared (a family, ...).
        case: name of the recorded value.
        values: numbers compared.
        max_diff, mean_diff: of the absolute differences; null when nothing could be compared.
        tolerance: largest difference that passes; null when nothing could be compared.
        problem: why nothing could be compared.
    """

    subject: str
    case: str
    values: int = 0
    max_diff: float | None = None
    mean_diff: float | None = None
    tolerance: float | None = None
    problem: str | None = None

    @property
    def passed(self) -> bool:
        """Whether something was compared and all of it lies within the tolerance (NaN does not)."""
        if self.problem is not None or self.values == 0 or self.max_diff is None or self.tolerance is None:
            return False
        return self.max_diff <= self.tolerance


HEAD = ["family", "case", "values", "max diff", "mean diff", "tolerance", "result"]


def table_rows(outcomes: Iterable[Outcome]) -> list[list[str]]:
    """Cells under `HEAD`.

    Args:
        outcomes: in order.
    """
    rows = []
    for item in outcomes:
        numbers = [_number(value) for value in (item.max_diff, item.mean_diff, item.tolerance)]
        result = "pass" if item.passed else f"FAIL: {item.problem}" if item.problem else "FAIL"
        rows.append([item.subject, item.case, f"{item.values:,}", *numbers, result])
    return rows


FILE_HEAD = ["file", "cases", "values", "largest difference", "result"]


def file_rows(outcomes: Iterable[Outcome]) -> list[list[str]]:
    """One line per subject, cells under `FILE_HEAD`.

    Args:
        outcomes: in order.
    """
    subjects: dict[str, list[Outcome]] = {}
    for item in outcomes:
        subjects.setdefault(item.subject, []).append(item)
    rows = []
    for subject, items in subjects.items():
        known = [item.max_diff for item in items if item.max_diff is not None]
        largest = next((value for value in known if value != value), max(known, default=None))  # NaN before all
        failed = sum(not item.passed for item in items)
        result = f"FAIL: {failed} of {len(items)}" if failed else "pass"
        values = f"{sum(item.values for item in items):,}"
        rows.append([subject, str(len(items)), values, _number(largest), result])
    return rows


def summary(outcomes: Iterable[Outcome], unit: str) -> str:
    """The last line: how much was compared.

    Args:
        outcomes: all of them.
        unit: what the subjects are, in the plural.
    """
    items = list(outcomes)
    failed = sum(not item.passed for item in items)
    subjects = len({item.subject for item in items})
    return f"{len(items)} cases of {subjects} {unit} compared, {failed} failed, 0 skipped"


def _number(value: float | None) -> str:
    return "-" if value is None else "0" if value == 0 else f"{value:.1e}"
