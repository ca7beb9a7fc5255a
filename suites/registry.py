"""One registry per noun: entries announce themselves with a decorator, the folder is scanned once."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from dare_bench.suites.errors import SuiteError, unknown_name

T = TypeVar("T")


class Registry(Generic[T]):
    """Names and their entries; adding one costs one file in the scanned folder and no edit elsewhere."""

    def __init__(self, kind: str, package: str, folder: Path, skip: tuple[str, ...] = ()) -> None:
        """Prepares an empty registry; nothing is imported before the first look-up.

        Args:
            kind: noun for error messages.
            package: import name of the scanned folder.
            folder: the folder whose modules are imported.
            skip: module names that hold no entry (the registry itself, base classes).
        """
        self._kind = kind
        self._package = package
        self._folder = folder
        self._skip = frozenset(skip)
        self._entries: dict[str, T] = {}
        self._origins: dict[str, str] = {}
        self._is_scanned = False

    def add(self, name: str, entry: T, origin: str) -> None:
        """Adds an entry.

        Args:
            name: what users write.
            entry: the object.
            origin: module that defines it, for the message about duplicates.

        Raises:
            SuiteError: the name is empty or taken.
        """
        if not name:
            raise SuiteError(f"a {self._kind} in {origin} has no name; set the class attribute `name`")
        if name in self._entries:
            raise SuiteError(
                f"{self._kind} {name!r} is defined twice, in {self._origins[name]} and in {origin}; rename one of them"
            )
        self._entries[name] = entry
        self._origins[name] = origin

    def entries(self) -> dict[str, T]:
        """Returns all entries by name, sorted; imports the folder's modules on first use."""
        if not self._is_scanned:
            for module in sorted(info.name for info in pkgutil.iter_modules([str(self._folder)])):
                if module not in self._skip:
                    importlib.import_module(f"{self._package}.{module}")
            self._is_scanned = True  # only now: a module that failed to import must fail again, not vanish
        return dict(sorted(self._entries.items()))

    def names(self) -> list[str]:
        """Returns the sorted names."""
        return list(self.entries())

    def get(self, name: str) -> T:
        """Returns the entry of a name.

        Raises:
            UnknownNameError: no such entry; the message carries the nearest name and the whole list.
        """
        entries = self.entries()
        if name not in entries:
            raise unknown_name(self._kind, name, entries)
        return entries[name]


def decorator(registry: Registry[T]) -> Callable[[type], type]:
    """Returns a class decorator that registers one instance of the class under its ``name``."""

    def register(cls: type) -> type:
        registry.add(getattr(cls, "name", ""), cls(), cls.__module__)
        return cls

    return register
