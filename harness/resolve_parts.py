"""Look up the plug-in parts of a manifest's decoder: a name, ``{name: value}`` or ``{name: {option: value}}``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dare_bench.dare.decoding import editors, schedulers, selectors, weightings
from dare_bench.dare.decoding import options as option_specs
from dare_bench.dare.decoding.options import Option, natural
from dare_bench.harness.errors import shorten
from dare_bench.harness.manifest_yaml import KeyPath
from dare_bench.harness.reporter import Reporter

#: Parts of a decoder; each has a field of that name and a field ``<name>_options``.
PARTS = ("selector", "scheduler", "cache", "editor", "weighting")


@dataclass(frozen=True)
class Cache:
    """A cache policy as the manifest knows it; the engine's table lives beside torch code."""

    summary: str
    attention: str | None = None
    options: Mapping[str, Option] = field(default_factory=dict)


CACHES = {
    "auto": Cache("Block for block-causal attention, else none: exact."),
    "none": Cache("Every forward feeds everything a row can see."),
    "block": Cache("Finished blocks are kept, exactly; the block is fed.", "block_causal"),
    "prefix": Cache("Refreshed at every block; the rest from the block on is fed (Fast-dLLM).", "full"),
    "dual": Cache("Refreshed at every block; only the block is fed (Fast-dLLM).", "full"),
    "vicinity": Cache(
        "As dual, with a window around the block (dInfer).",
        "full",
        {"prefix_look": natural(default=16), "after_look": natural(default=16), "warmup_steps": natural(default=4)},
    ),
}


def known_parts(part: str) -> dict[str, Mapping[str, Option]]:
    """Names of a part with their options."""
    if part == "cache":
        return {name: cache.options for name, cache in CACHES.items()}
    tables: dict[str, Mapping[str, Any]] = {
        "selector": selectors.selectors(),
        "scheduler": schedulers.schedulers(),
        "editor": editors.editors(),
        "weighting": weightings.weightings(),
    }
    return {name: entry.options for name, entry in tables[part].items()}


def resolve_part(
    report: Reporter, path: KeyPath, part: str, given: str | dict[str, Any]
) -> tuple[str, dict[str, Any]] | None:
    """Name and options of a part.

    Args:
        report: collects problems.
        path: of the part.
        part: one of `PARTS`.
        given: of the manifest.

    Returns:
        The name with its complete options, less those that are off: what was stored before they existed keeps its
        fingerprint. Null when something is wrong.
    """
    found = name_of(report, path, part, given)
    if found is None:
        return None
    name, options = found
    known = known_parts(part)
    if name not in known:
        report.unknown(path, part, name, known)
        return None
    if not isinstance(options, dict):
        main = option_specs.main_option(known[name])
        # Without a main option the value is reported as an option of that name, which does not exist.
        options = {} if options is None else {main or str(options): options}
    try:
        complete = option_specs.complete(part, name, known[name], options)
    except (ValueError, LookupError) as error:
        said, _, allowed = str(error).partition("; allowed: ")
        report.add(path, said, given=shorten(given), allowed=allowed or example(name, known[name]))
        return None
    return name, {option: value for option, value in complete.items() if value is not None and value is not False}


def name_of(report: Reporter, path: KeyPath, part: str, given: str | dict[str, Any]) -> tuple[str, Any] | None:
    """Split ``{name: value}``; a bare name has the value null."""
    if not isinstance(given, dict):
        return given, None
    if len(given) != 1:
        report.add(path, f"names several {part}s", given=shorten(given), allowed="{name: value} with one name")
        return None
    name, value = next(iter(given.items()))
    return str(name), value


def example(name: str, options: Mapping[str, Option]) -> str:
    """How a part is written, in words."""
    if not options:
        return f"{name}, without options"
    return f"{{{name}: {{{', '.join(f'{option}: VALUE' for option in options)}}}}}"
