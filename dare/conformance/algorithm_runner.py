"""Every file of recorded algorithm values against its module. A file or a value that nothing compares is a failure."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from dare_bench.dare.conformance.fixture import Compared, Fixture, read_fixture
from dare_bench.dare.conformance.layout import fixture_files
from dare_bench.dare.conformance.outcome import Outcome

PACKAGE = "dare_bench.dare.conformance.algorithms"

#: What a module raises when a recorded value does not fit the algorithm: the file fails, the others go on.
_MISFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def modules() -> dict[str, ModuleType]:
    """Stem -> module, of every module of the package that compares a file."""
    package = importlib.import_module(PACKAGE)
    names = [module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")]
    return {name: importlib.import_module(f"{PACKAGE}.{name}") for name in sorted(names)}


def compare(root: Path, extra: Mapping[str, Any] | None = None) -> list[Outcome]:
    """Compare every file of a folder.

    Args:
        root: of `layout.fixture_files`.
        extra: more modules by stem (attributes ``cases`` and optionally ``NOT_COMPARED``), of what lies outside of this
            package.

    Returns:
        Outcomes, file after file in the order of their names.

    Raises:
        BadReference: no such folder, or a damaged file.
    """
    known = {**modules(), **(extra or {})}
    # All are read first: a damaged file is an error of the folder, not a difference.
    read = [read_fixture(stem, files) for stem, files in fixture_files(root).items()]
    return [outcome for fixture in read for outcome in compare_one(fixture, known.get(fixture.stem))]


def compare_one(fixture: Fixture, module: Any) -> list[Outcome]:
    """Outcomes of one file.

    Args:
        fixture: its values.
        module: that compares them; null = there is none.
    """
    if module is None:
        return [Outcome(fixture.stem, "-", problem="no module compares a file of this name")]
    found: list[Outcome] = []
    cases: Callable[[Fixture], Iterator[Compared]] = module.cases
    try:
        for case in cases(fixture):
            found.append(case.outcome(fixture.stem))
    except _MISFIT as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return [*found, Outcome(fixture.stem, f"after case {len(found)}", problem=said)]
    if not found:
        found.append(Outcome(fixture.stem, "-", problem="its module compares nothing"))
    excused = tuple(getattr(module, "NOT_COMPARED", {}))
    for path in fixture.unread():
        if not any(path == one or path.startswith(f"{one}.") for one in excused):
            found.append(Outcome(fixture.stem, path, problem="recorded, but its module never reads it"))
    return found
