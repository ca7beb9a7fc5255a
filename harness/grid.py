"""From a resolved suite to its cells: the product of all axes, minus what is excluded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from dare_bench.harness.errors import ManifestError
from dare_bench.harness.manifest_yaml import Document
from dare_bench.harness.resolved import Decoding, Model, Recipe, Suite, Task


@dataclass(frozen=True)
class Cell:
    """One cell of the grid."""

    model: Model
    recipe: Recipe
    task: Task
    decoder: Decoding
    seed: int

    @property
    def name(self) -> str:
        """``model/label/benchmark/decoder/seed``, unique in a suite."""
        return "/".join((self.model.name, self.recipe.label, self.task.name, self.decoder.name, str(self.seed)))


def expand(suite: Suite, document: Document) -> list[Cell]:
    """All cells of a suite, in the order of the manifest.

    Args:
        suite: resolved manifest.
        document: positions, for the error of an empty grid or an exclude entry that removes nothing.

    Raises:
        ManifestError: no cell is left, or an exclude entry matches none.
    """
    product = list(_product(suite))
    used = [False] * len(suite.exclude)
    cells = []
    for cell in product:
        hits = [index for index, rule in enumerate(suite.exclude) if _matches(cell, rule)]
        for index in hits:  # also of pairs that no recipe exists for: such a rule says so
            used[index] = True
        if not hits and cell.recipe.trains(cell.model):
            cells.append(cell)
    problems = [
        document.problem(("exclude", index), "matches no cell of the grid", given=str(document.data["exclude"][index]))
        for index, was_used in enumerate(used)
        if not was_used and not _narrowed(document)
    ]
    if not cells:
        message = f"the grid is empty: all {len(product)} cells are excluded"
        problems.append(document.problem(("exclude",), message, allowed="at least one cell left"))
    if problems:
        raise ManifestError(problems)
    return cells


def is_excluded(cell: Cell, suite: Suite) -> bool:
    """Whether a rule of the suite leaves a cell out."""
    return any(_matches(cell, rule) for rule in suite.exclude)


def _narrowed(document: Document) -> bool:
    """Whether `--set` replaced a list of the grid: rules of the file may then have nothing left to remove."""
    return any(
        document.where((section,)).startswith("--set")
        for section in ("models", "algorithms", "benchmarks", "decoders", "seeds")
    )


def _product(suite: Suite) -> Iterator[Cell]:
    for parts in itertools.product(suite.models, suite.recipes, suite.tasks, suite.decoders, suite.seeds):
        yield Cell(*parts)


def _matches(cell: Cell, rule: object) -> bool:
    names = {
        "model": cell.model.name,
        "algorithm": cell.recipe.label,
        "benchmark": cell.task.name,
        "decoder": cell.decoder.name,
        "seed": cell.seed,
    }
    assert isinstance(rule, dict)
    return all(names[key] in allowed for key, allowed in rule.items())
