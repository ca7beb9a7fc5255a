"""Look up a manifest's decoder: selector, its options, and the engine's settings."""

from __future__ import annotations

from typing import Any

from dare_bench.dare.decoding import selectors as selector_registry
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.schedulers import schedulers
from dare_bench.harness.errors import shorten
from dare_bench.harness.manifest import DecoderItem
from dare_bench.harness.manifest_yaml import KeyPath
from dare_bench.harness.reporter import Reporter
from dare_bench.harness.resolved import Decoding
from dare_bench.harness.settings import build

#: Cache policies of the engine; its own table lives beside torch code.
CACHES = ("auto", "block", "none")


def resolve_decoder(report: Reporter, path: KeyPath, item: DecoderItem) -> Decoding | None:
    """A manifest's decoder as engine settings."""
    known = selector_registry.selectors()
    name, options = item.selector, {}
    if isinstance(name, dict):
        if len(name) != 1:
            given = shorten(item.selector)
            report.add(
                (*path, "selector"), "names several selectors", given=given, allowed="{name: value} with one name"
            )
            return None
        name, options = next(iter(name.items()))
    if name not in known:
        report.unknown((*path, "selector"), "selector", name, known)
        return None
    values = item.model_dump(exclude={"selector", "batch_size"}, exclude_unset=True)
    if not _check_names(report, path, values):
        return None
    if not isinstance(options, dict):
        options = _main_option(known[name], options)
    try:
        _, complete = selector_registry.resolve(name, options or {})
    except (ValueError, LookupError) as error:
        said, _, allowed = str(error).partition("; allowed: ")
        report.add((*path, "selector"), said, given=shorten(item.selector), allowed=allowed or _example(known[name]))
        return None
    config, errors = build(DecoderConfig, {**values, "selector": name, "selector_options": complete})
    for error in errors:
        report.add((*path, error.field), error.message, given=error.given, allowed=error.allowed)
    return None if config is None else Decoding(config, item.batch_size)


def _check_names(report: Reporter, path: KeyPath, values: dict[str, Any]) -> bool:
    known = {"scheduler": sorted(schedulers()), "cache": CACHES}
    for key, names in known.items():
        if key in values and values[key] not in names:
            report.unknown((*path, key), key, values[key], names)
            return False
    return True


def main_option(entry: selector_registry.SelectorEntry) -> str | None:
    """The option that ``{name: value}`` sets: a selector's only one."""
    return next(iter(entry.options)) if len(entry.options) == 1 else None


def _example(entry: selector_registry.SelectorEntry) -> str:
    if not entry.options:
        return f"{entry.name}, without options"
    return f"{{{entry.name}: {{{', '.join(f'{option}: VALUE' for option in entry.options)}}}}}"


def _main_option(entry: selector_registry.SelectorEntry, value: Any) -> dict[str, Any]:
    name = main_option(entry)
    if value is None:
        return {}
    # Without a main option the value is reported as an option of that name, which does not exist.
    return {name or str(value): value}
