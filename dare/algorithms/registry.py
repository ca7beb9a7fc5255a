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

_REGISTRY: dict[str, AlgorithmEntry] = {}
_NOT_ALGORITHMS = {"base", "registry", "objectives", "advantages"}


@dataclass(frozen=True)
class AlgorithmEntry:
    """One algorithm.

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


def register(
    name: str,
    *,
    families: set[str],
    config: type,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    train_presets: Mapping[str, Mapping[str, Any]] | None = None,
    version: int = 1,
) -> Callable[[type], type]:
    """Class decorator that registers an algorithm; the class docstring's first line is its summary."""

    def add(cls: type) -> type:
        if name in _REGISTRY and _REGISTRY[name].cls.__qualname__ != cls.__qualname__:
            raise ValueError(f"algorithm {name!r} is registered twice")
        _REGISTRY[name] = AlgorithmEntry(
            name=name,
            cls=cls,
            config_class=config,
            families=frozenset(families),
            needs=cls.needs,
            presets=presets or {},
            train_presets=train_presets or {},
            summary=(cls.__doc__ or "").strip().splitlines()[0],
            version=version,
        )
        return cls

    return add


@functools.cache
def algorithms() -> dict[str, AlgorithmEntry]:
    """All algorithms, by name."""
    package = importlib.import_module("dare_bench.dare.algorithms")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in _NOT_ALGORITHMS:
            importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def get(name: str) -> AlgorithmEntry:
    """One algorithm.

    Raises:
        UnknownName: with the nearest name.
    """
    known = algorithms()
    if name not in known:
        raise UnknownName("algorithm", name, list(known))
    return known[name]
