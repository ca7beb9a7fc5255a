"""The table of all rewards: a file of this folder with a class under `@reward` is one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dare_bench.suites.registry import Registry

if TYPE_CHECKING:
    from dare_bench.suites.rewards.base import Reward

R = TypeVar("R", bound="type[Reward]")

_REGISTRY: Registry[type[Reward]] = Registry(
    "reward",
    "dare_bench.suites.rewards",
    Path(__file__).resolve().parent,
    skip=("base", "building", "registry"),
)


def reward(cls: R) -> R:
    """Class decorator: registers a reward under its attribute `name`."""
    _REGISTRY.add(cls.name, cls, cls.__module__)
    return cls


def names() -> list[str]:
    """Returns the sorted names of all rewards."""
    return _REGISTRY.names()


def rewards() -> dict[str, type[Reward]]:
    """Returns all reward classes by name."""
    return _REGISTRY.entries()


def get(name: str) -> type[Reward]:
    """Returns the class of a name.

    Raises:
        UnknownNameError: no such reward; the message carries the nearest name.
    """
    return _REGISTRY.get(name)
