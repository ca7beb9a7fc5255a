"""Errors a user can act on. They are printed without a traceback; their class decides the exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class HarnessError(Exception):
    """Base of everything the command line prints without a traceback.

    Attributes:
        exit_code: what the process ends with.
    """

    exit_code = 1


class UserError(HarnessError):
    """A usage or manifest error: the command as given cannot work."""

    exit_code = 2


class LockHeld(HarnessError):
    """Another run owns the runs folder or the database."""


class JobError(HarnessError):
    """A job cannot give a true result; stored with the job, the rest of the grid goes on."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a manifest.

    Attributes:
        where: ``file:line`` or the command-line option that brought the value.
        key: key path, for example ``algorithms[1].name``; empty for the file as a whole.
        message: what is wrong.
        given: the value, shortened; null when there is none to show.
        allowed: what is allowed instead.
        nearest: the nearest allowed name.
    """

    where: str
    key: str
    message: str
    given: str | None = None
    allowed: str | None = None
    nearest: str | None = None

    def render(self) -> str:
        """The problem as indented text."""
        lines = [f"{self.where}: {self.key + ': ' if self.key else ''}{self.message}"]
        for label, text in (("given", self.given), ("allowed", self.allowed), ("nearest", self.nearest)):
            if text is not None:
                lines.append(f"    {label + ':':<9}{text}")
        return "\n".join(lines)


class ManifestError(UserError):
    """All problems of one manifest.

    Args:
        problems: at least one.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        count = len(self.problems)
        head = f"{count} problem{'s' if count != 1 else ''} in the manifest"
        super().__init__("\n".join([head, *(problem.render() for problem in self.problems)]))


def shorten(value: Any, limit: int = 80) -> str:
    """A value as one short line.

    Args:
        value: anything from a manifest.
        limit: characters kept.
    """
    text = (
        repr(value)
        if not isinstance(value, bool) and value is not None
        else {None: "null"}.get(value, str(value).lower())
    )
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The nearest allowed name, or null when none is near."""
    if not isinstance(name, str):
        return None
    by_lower = {item.lower().replace("-", "_"): item for item in known}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None
