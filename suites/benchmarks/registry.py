"""The table of all benchmarks: one file each in this folder, found by scanning it."""

from __future__ import annotations

from pathlib import Path

from dare_bench.suites.benchmarks.base import Benchmark
from dare_bench.suites.registry import Registry, decorator

_REGISTRY: Registry[Benchmark] = Registry(
    "benchmark", "dare_bench.suites.benchmarks", Path(__file__).resolve().parent, skip=("base", "registry", "shipped")
)

#: Class decorator: registers one instance under the class attribute `name`.
benchmark = decorator(_REGISTRY)


def names() -> list[str]:
    """Returns the sorted names of all benchmarks."""
    return _REGISTRY.names()


def benchmarks() -> dict[str, Benchmark]:
    """Returns all benchmarks by name."""
    return _REGISTRY.entries()


def get(name: str) -> Benchmark:
    """Returns the benchmark of a name.

    Raises:
        UnknownNameError: no such benchmark; the message carries the nearest name and the whole list.
    """
    return _REGISTRY.get(name)
