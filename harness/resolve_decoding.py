"""Look up a manifest's decoder: selector, its options, and the engine's settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from dare_bench.dare.decoding import compat, presets
from dare_bench.dare.decoding import options as option_specs
from dare_bench.dare.decoding import selectors as selector_registry
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.families import registry as family_registry
from dare_bench.harness.errors import shorten
from dare_bench.harness.manifest import DecoderFields, DecoderItem
from dare_bench.harness.manifest_yaml import KeyPath
from dare_bench.harness.reporter import Reporter
from dare_bench.harness.resolve_parts import PARTS, name_of, resolve_part
from dare_bench.harness.resolved import Decoding, Model
from dare_bench.harness.settings import build, plain


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
    """The fields of `DecoderConfig` that an entry gives; a part (selector, scheduler ...) comes with its options.

    Args:
        report: collects problems.
        path: of the entry.
        item: of the manifest.
        own: default decoder of a family, whose selector may be one of its own engine.

    Returns:
        Field -> value, or null when something is wrong.
    """
    given = item.model_fields_set - {"name", "batch_size", "preset"}
    values = item.model_dump(include=given - {*PARTS, "compat"})
    is_right = True
    for part in PARTS:
        if part not in given:
            continue
        named = getattr(item, part)
        found = _own_selector(report, (*path, part), named, own or {}) if part == "selector" else ()
        if found == ():
            found = resolve_part(report, (*path, part), part, named)
        if found:
            values |= {part: found[0], f"{part}_options": found[1]}
        is_right = is_right and bool(found)
    if "compat" in given:
        try:
            values["compat"] = compat.complete(item.compat)
        except (ValueError, LookupError) as error:
            said, _, allowed = str(error).partition("; allowed: ")
            known = allowed or ", ".join(sorted(compat.QUIRKS))
            report.add((*path, "compat"), said, given=shorten(item.compat), allowed=known)
            is_right = False
    if item.preset is not None:
        if item.preset not in presets.presets():
            report.unknown((*path, "preset"), "preset", item.preset, presets.presets())
            return None
        fields = presets.get(item.preset).fields
        bare = {f"{part}_options": {} for part in PARTS if part in fields}  # not those of the model's default
        values = {**bare, **fields, **values}
    return values if is_right else None


def _own_selector(
    report: Reporter, path: KeyPath, given: str | dict[str, Any], own: Mapping[str, Any]
) -> tuple[str, dict[str, Any]] | tuple[()] | None:
    """The selector of a family's own engine, if it is named; else an empty tuple."""
    found = name_of(report, path, "selector", given)
    if found is None or found[0] != own.get("selector"):
        return found and ()
    return _own_options(report, path, *found, own.get("selector_options") or {})


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


def main_option(entry: selector_registry.SelectorEntry) -> str | None:
    """The option that ``{name: value}`` sets: a selector's only required one, or its only one."""
    return option_specs.main_option(entry.options)
