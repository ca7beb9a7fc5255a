"""Look up a manifest's decoder: selector, its options, and the engine's settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from dare_bench.dare.decoding import options as option_specs
from dare_bench.dare.decoding import selectors as selector_registry
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.schedulers import schedulers
from dare_bench.dare.families import registry as family_registry
from dare_bench.harness.errors import shorten
from dare_bench.harness.manifest import DecoderFields, DecoderItem
from dare_bench.harness.manifest_yaml import KeyPath
from dare_bench.harness.reporter import Reporter
from dare_bench.harness.resolved import Decoding, Model
from dare_bench.harness.settings import build, plain

#: Cache policies of the engine; its own table lives beside torch code.
CACHES = ("auto", "block", "none")


def resolve_decoder(report: Reporter, path: KeyPath, item: DecoderItem) -> Decoding | None:
    """A manifest's decoder as engine settings, with what it gives itself."""
    values = resolve_fields(report, path, item)
    if values is None:
        return None
    config, errors = build(DecoderConfig, {**values, "name": item.name})
    for error in errors:
        report.add((*path, error.field), error.message, given=error.given, allowed=error.allowed)
    return None if config is None else Decoding(config, item.batch_size, tuple(sorted(values)))


def resolve_fields(
    report: Reporter, path: KeyPath, item: DecoderFields, own: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """The fields of `DecoderConfig` that an entry gives; a selector comes with all its options.

    Args:
        report: collects problems.
        path: of the entry.
        item: of the manifest.
        own: default decoder of a family, whose selector may be one of its own engine.

    Returns:
        Field -> value, or null when something is wrong.
    """
    values = item.model_dump(exclude={"name", "selector", "batch_size"}, exclude_unset=True)
    if not _check_names(report, path, values):
        return None
    if "selector" not in item.model_fields_set:
        return values
    found = _selector(report, (*path, "selector"), item.selector, own or {})
    return None if found is None else {**values, "selector": found[0], "selector_options": found[1]}


def _selector(
    report: Reporter, path: KeyPath, given: str | dict[str, Any], own: Mapping[str, Any]
) -> tuple[str, dict[str, Any]] | None:
    """Name and complete options of a selector."""
    known = selector_registry.selectors()
    name, options = given, {}
    if isinstance(name, dict):
        if len(name) != 1:
            report.add(path, "names several selectors", given=shorten(given), allowed="{name: value} with one name")
            return None
        name, options = next(iter(name.items()))
    if name == own.get("selector"):
        return _own_options(report, path, str(name), options, own.get("selector_options") or {})
    if name not in known:
        report.unknown(path, "selector", name, known)
        return None
    if not isinstance(options, dict):
        options = _main_option(known[name], options)
    try:
        _, complete = selector_registry.resolve(name, options or {})
    except (ValueError, LookupError) as error:
        said, _, allowed = str(error).partition("; allowed: ")
        report.add(path, said, given=shorten(given), allowed=allowed or _example(known[name]))
        return None
    # Options that are off are left out: what was stored before they existed keeps its fingerprint.
    return name, {option: value for option, value in complete.items() if value is not None and value is not False}


def _own_options(
    report: Reporter, path: KeyPath, name: str, options: Any, known: Mapping[str, Any]
) -> tuple[str, dict[str, Any]] | None:
    """Options of a selector that only one family's engine knows."""
    given = options or {}
    if not isinstance(given, dict) or not set(given) <= set(known):
        shown = ", ".join(f"{option}: VALUE" for option in known)
        report.add(path, f"not the options of {name}", given=shorten(options), allowed=f"{{{name}: {{{shown}}}}}")
        return None
    for option, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            report.add(path, f"not a value of {option}", given=shorten(value), allowed="a positive number")
            return None
    return name, {**known, **given}


def effective(decoding: Decoding, model: Model, *, keep: Collection[str] = ()) -> DecoderConfig:
    """A decoder as it runs on a model: fields left out are those of the model's entry, of its family, of `DecoderConfig`.

    Args:
        decoding: of the manifest.
        model: it runs on.
        keep: fields that are not filled in.
    """
    given = {*decoding.given, *keep}
    defaults = {field: value for field, value in model.default_decoder.items() if field not in given}
    return dataclasses.replace(decoding.config, **defaults)


def stored(decoder: DecoderConfig, model: Model) -> dict[str, Any]:
    """The settings that have an effect on a model: what is stored of a decoder."""
    honoured = family_registry.get_family(model.family).decoder_fields
    values = plain(decoder)
    if honoured is None:
        return values
    return {field: value for field, value in values.items() if field in {*honoured, *model.default_decoder}}


def _check_names(report: Reporter, path: KeyPath, values: dict[str, Any]) -> bool:
    known = {"scheduler": sorted(schedulers()), "cache": CACHES}
    for key, names in known.items():
        if key in values and values[key] not in names:
            report.unknown((*path, key), key, values[key], names)
            return False
    return True


def main_option(entry: selector_registry.SelectorEntry) -> str | None:
    """The option that ``{name: value}`` sets: a selector's only required one, or its only one."""
    return option_specs.main_option(entry.options)


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
