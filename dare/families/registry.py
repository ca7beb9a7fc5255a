"""Families and named checkpoints. Imports no torch.

A family registers itself when its file in this folder is imported; `families()` imports them all once.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dare_bench.dare.families.facts import Family

_FAMILIES: dict[str, Family] = {}
_NOT_FAMILIES = {
    "base", "cache", "canvas", "catalog", "chat", "common", "dims", "facts", "keys", "last_layer", "loading", "places",
    "random_entries", "registry", "tokens", "weights",
}  # fmt: skip


class UnknownName(LookupError):
    """A name that is not in a registry; the message lists what is and the nearest name."""

    def __init__(self, kind: str, name: str, known: list[str]) -> None:
        near = [match for match in difflib.get_close_matches(name, known, n=1) if match != name]
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind} {name!r}.{hint} Known: {', '.join(sorted(known))}.")
        self.kind, self.name, self.known, self.nearest = kind, name, sorted(known), near[0] if near else None


@dataclass(frozen=True)
class ModelEntry:
    """A named checkpoint.

    Attributes:
        name: as used in manifests.
        family: family name.
        source: ``package:<name>`` (shipped), a hub id, or a local folder.
        revision: pinned hub revision (commit); null = none pinned yet, and results say so.
        config: official config fields, enough for sizes and memory without the weights.
        description: one line.
    """

    name: str
    family: str
    source: str
    revision: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""


def register(family: Family) -> Family:
    """Add a family (called by each family file)."""
    known = _FAMILIES.get(family.name)
    if known is not None and known is not family:
        raise ValueError(f"family {family.name!r} is registered twice")
    _FAMILIES[family.name] = family
    return family


@functools.cache
def families() -> dict[str, Family]:
    """All families, by name."""
    package = importlib.import_module("dare_bench.dare.families")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in _NOT_FAMILIES:
            importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_FAMILIES.items()))


def get_family(name: str) -> Family:
    """One family.

    Raises:
        UnknownName: with the nearest name.
    """
    known = families()
    if name not in known:
        raise UnknownName("family", name, list(known))
    return known[name]


def detect(config: Mapping[str, Any]) -> Family:
    """The family of an official config.json.

    Raises:
        UnknownName: if none or several match.
    """
    found = [family for family in families().values() if family.matches(config)]
    if len(found) != 1:
        # Both: LLaDA-8B and LLaDA-MoE share the type and differ in the architecture.
        said = [config.get("model_type"), *(config.get("architectures") or ())]
        raise UnknownName("model type", " / ".join(str(name) for name in said if name), list(families()))
    return found[0]


@functools.cache
def models() -> dict[str, ModelEntry]:
    """All named checkpoints."""
    from dare_bench.dare.families import catalog, random_entries

    return {entry.name: entry for entry in (*catalog.ENTRIES, *random_entries.ENTRIES)}


def get(name: str) -> ModelEntry:
    """One named checkpoint.

    Raises:
        UnknownName: with the nearest name.
    """
    known = models()
    if name not in known:
        raise UnknownName("model", name, list(known))
    return known[name]
