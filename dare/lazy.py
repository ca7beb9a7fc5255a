"""Modules that are imported when first used, so that facts about algorithms and families load without torch."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    """A stand-in that imports the real module at the first attribute access."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # introspection (inspect, doctest) must not trigger an import
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self.__name__), attribute)


def lazy_import(name: str) -> Any:
    """Return a proxy of module `name` that is imported at its first use.

    Args:
        name: absolute module name, for example ``"torch"``.

    Returns:
        An object that forwards attribute access to the module.
    """
    return _LazyModule(name)
