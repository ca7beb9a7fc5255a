"""Algorithms by name. Imports no torch: manifests are validated with it."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dare_bench.dare.algorithms.base import Algorithm, Needs
from dare_bench.dare.families.registry import UnknownName
from dare_bench.dare.training.config import TrainConfig

_REGISTRY: dict[str, list[AlgorithmEntry]] = {}
_NOT_ALGORITHMS = {
    "advantages", "base", "block_masks", "distillation", "estimators", "levels", "objectives", "options",
    "policy", "preference", "registry", "rows", "segment_masks", "sequence", "sft_corruption", "sft_options",
    "step_weights", "surrogates", "traces", "trajectories", "trees", "values",
}  # fmt: skip

#: (optimisation settings, the algorithm's own settings) -> what cannot be honoured, field -> what is allowed.
Check = Callable[[TrainConfig, Any], Mapping[str, str]]


@dataclass(frozen=True)
class AlgorithmEntry:
    """One algorithm, for the families it is sound for; a name may have several entries with disjoint families.

    Attributes:
        name: paper name, lower case.
        cls: the class; ``cls(config)`` builds it.
        config_class: frozen dataclass of its options, all with defaults.
        families: families it is sound for.
        needs: what the engine provides.
        presets: named sets of options (``paper``, ``repo``, ``dare``).
        train_presets: matching optimiser settings (fields of TrainConfig).
        summary: one line.
        version: raised with any change of behaviour; part of the fingerprint.
        check: settings that this entry cannot honour; null = it honours all.
    """

    name: str
    cls: type[Algorithm]
    config_class: type
    families: frozenset[str]
    needs: Needs
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    train_presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    summary: str = ""
    version: int = 1
    check: Check | None = None


def register(
    name: str,
    *,
    families: set[str],
    config: type,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    train_presets: Mapping[str, Mapping[str, Any]] | None = None,
    version: int = 1,
    check: Check | None = None,
) -> Callable[[type], type]:
    """Class decorator that registers an algorithm; the class docstring's first line is its summary.

    Raises:
        ValueError: if another class has the name for one of the families.
    """

    def add(cls: type) -> type:
        others = [entry for entry in _REGISTRY.get(name, []) if entry.cls.__qualname__ != cls.__qualname__]
        taken = sorted({family for entry in others for family in entry.families & families})
        if taken:
            raise ValueError(f"algorithm {name!r} is registered twice for the family {taken[0]!r}")
        entry = AlgorithmEntry(
            name=name,
            cls=cls,
            config_class=config,
            families=frozenset(families),
            needs=cls.needs,
            presets=presets or {},
            train_presets=train_presets or {},
            summary=(cls.__doc__ or "").strip().splitlines()[0],
            version=version,
            check=check,
        )
        _REGISTRY[name] = [*others, entry]
        return cls

    return add


@functools.cache
def algorithms() -> dict[str, tuple[AlgorithmEntry, ...]]:
    """All algorithms: name -> its entries, in the order of their files."""
    package = importlib.import_module("dare_bench.dare.algorithms")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        if module.name not in _NOT_ALGORITHMS:
            importlib.import_module(f"{package.__name__}.{module.name}")
    return {name: tuple(entries) for name, entries in sorted(_REGISTRY.items())}


def get(name: str, family: str | None = None) -> AlgorithmEntry:
    """One algorithm.

    Args:
        name: as in manifests.
        family: of the model; null = the first entry of the name (the only one, for most).

    Raises:
        UnknownName: with the nearest name; or no entry of the name is for the family.
    """
    known = algorithms()
    if name not in known:
        raise UnknownName("algorithm", name, list(known))
    if family is None:
        return known[name][0]
    found = [entry for entry in known[name] if family in entry.families]
    if not found:
        supported = sorted({other for entry in known[name] for other in entry.families})
        raise UnknownName(f"family of {name}", family, supported)
    return found[0]
