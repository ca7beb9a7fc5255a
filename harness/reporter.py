"""Collect the problems of a manifest, with positions, instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dare_bench.harness.errors import Problem, nearest, shorten
from dare_bench.harness.manifest_yaml import Document, KeyPath


class Reporter:
    """Collects problems of one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []

    def add(self, path: KeyPath, message: str, **details: str | None) -> None:
        """Note a problem; `details` are the fields of `Problem` (given, allowed, nearest)."""
        while path and not _exists(self.document.data, path) and path[-1] == "name":
            path = path[:-1]  # a bare name in the list: there is no `name:` key to point at
        problem = self.document.problem(path, message, **details)
        known = {(other.where, other.key, other.given) for other in self.problems}
        if (problem.where, problem.key, problem.given) not in known:  # a shared setting concerns several algorithms
            self.problems.append(problem)

    def unknown(self, path: KeyPath, kind: str, given: object, known: Iterable[str]) -> None:
        """Note an unknown name."""
        names = sorted(known)
        self.add(path, f"unknown {kind}", given=shorten(given), allowed=", ".join(names), nearest=nearest(given, names))

    def duplicates(self, section: str, names: Iterable[str], hint: str) -> None:
        """Note every name that is used twice in a section."""
        first: dict[str, int] = {}
        for index, name in enumerate(names):
            if name in first:
                message = f"duplicate cell names: {section}[{first[name]}] has the same name"
                self.add((section, index), message, given=shorten(name), allowed=hint)
            first.setdefault(name, index)


def _exists(data: Any, path: KeyPath) -> bool:
    for part in path:
        if (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        ):
            data = data[part]
        else:
            return False
    return True
