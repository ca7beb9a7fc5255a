"""Decoder settings of a request: OpenAI's sampling keys, and `decoder` with the fields of the engine. Imports no torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from dare_bench.dare.decoding import selectors
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.harness.errors import nearest, shorten
from dare_bench.harness.resolve_decoding import main_option
from dare_bench.harness.resolve_pairs import unhonoured
from dare_bench.harness.serve_errors import Refusal
from dare_bench.harness.settings import build, field_types

#: OpenAI's key -> field of the decoder.
_OPENAI = {
    "max_tokens": "gen_length",
    "max_completion_tokens": "gen_length",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
}


def decoder_of(body: Mapping[str, Any], default: DecoderConfig, family: str) -> DecoderConfig:
    """Complete settings of a request.

    Args:
        body: of the request, nulls left out.
        default: of the server, for what the request does not give.
        family: of the model; fields that its engine ignores are refused.

    Raises:
        Refusal: 400 naming the key, what was given and what is allowed.
    """
    given = _own(body.get("decoder", {}), default)
    origin = {field: f"decoder.{field}" for field in given}
    for key, field in _OPENAI.items():
        if key not in body:
            continue
        value = _sampling(key, body[key])
        if field in given and given[field] != value:
            said = f"{key} is {shorten(value)}, {origin[field]} is {shorten(given[field])}; give one of them"
            raise Refusal(400, said, param=key, code="given_twice")
        given[field], origin[field] = value, key
    ignored = unhonoured(tuple(field for field in given if given[field] is not None), family)
    if ignored:
        named = ", ".join(origin[field] for field in ignored)
        said = f"{named}: the family {family} decodes by its own procedure and does not honour it; leave it out"
        raise Refusal(400, said, param=origin[ignored[0]], code="unsupported")
    values = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
    config, errors = build(DecoderConfig, {**values, **given})
    if errors:
        wrong = errors[0]
        said = f"{origin.get(wrong.field, wrong.field)} is {wrong.given}; allowed: {wrong.allowed}"
        raise Refusal(400, said, param=origin.get(wrong.field), code="invalid_value")
    for field in ("gen_length", "steps_per_block", "block_length", "top_k"):
        value = getattr(config, field)
        if value is not None and value < 1:
            said = f"{origin.get(field, field)} is {value}; allowed: a positive whole number"
            raise Refusal(400, said, param=origin.get(field), code="invalid_value")
    return config


def _own(given: Any, default: DecoderConfig) -> dict[str, Any]:
    """The key `decoder`; a selector may be a name, ``{name: value}`` or ``{name: {option: value}}``."""
    known = sorted(set(field_types(DecoderConfig)) - {"name"})
    if not isinstance(given, dict):
        said = f"decoder is {shorten(given)}; allowed: an object with {', '.join(known)}"
        raise Refusal(400, said, param="decoder", code="invalid_value")
    for key in given:
        if key not in known:
            near = nearest(key, known)
            hint = f" (did you mean {near}?)" if near else ""
            said = f"unknown decoder option {shorten(key)}{hint}; allowed: {', '.join(known)}"
            raise Refusal(400, said, param=f"decoder.{key}", code="unknown_key")
    values = dict(given)
    if "selector" in values:
        name, options = _selector(values["selector"])
        if options is not None and "selector_options" in values:
            said = "decoder.selector holds options, and decoder.selector_options does; give one of them"
            raise Refusal(400, said, param="decoder.selector_options", code="given_twice")
        # The options of another rule do not carry over.
        kept = default.selector_options if name == default.selector else {}
        values["selector"] = name
        values["selector_options"] = values.get("selector_options", options if options is not None else kept)
    if {"selector", "selector_options"} & set(values):
        _check_selector(values.get("selector", default.selector), values["selector_options"], default)
    return values


def _selector(value: Any) -> tuple[Any, dict[str, Any] | None]:
    if not isinstance(value, dict):
        return value, None
    if len(value) != 1:
        said = f"decoder.selector is {shorten(value)}; allowed: {{name: value}} with one name"
        raise Refusal(400, said, param="decoder.selector", code="invalid_value")
    name, options = next(iter(value.items()))
    entry = selectors.selectors().get(name)
    if entry is not None and not isinstance(options, dict):
        main = main_option(entry)
        if main is None and options is not None:
            known = ", ".join(entry.options) or "(none)"
            said = f"decoder.selector {name} is {shorten(options)}; allowed: its options by name: {known}"
            raise Refusal(400, said, param="decoder.selector", code="invalid_value")
        options = {} if options is None else {str(main): options}
    return name, options


def _check_selector(name: Any, options: Any, default: DecoderConfig) -> None:
    """Refuse what the table of rules does not hold; a rule of the family's own engine is the engine's to check."""
    if name == default.selector and name not in selectors.selectors():
        return
    try:
        selectors.resolve(name, options)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        said = f"decoder.selector {shorten(name)} with {shorten(options)}: {error}"
        raise Refusal(400, said, param="decoder.selector", code="invalid_value") from error


def _sampling(key: str, value: Any) -> Any:
    """An OpenAI key's value; those that ask for no filter become null."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    whole = number and isinstance(value, int)
    allowed = {
        "temperature": (number and value >= 0, "0 (greedy) or a positive number"),
        "top_p": (number and 0 < value <= 1, "a number above 0 and up to 1"),
        "top_k": (whole and value >= -1, "a positive whole number; 0 or -1 for no filter"),
    }.get(key, (whole and value >= 1, "a positive whole number"))
    if not allowed[0]:
        raise Refusal(400, f"{key} is {shorten(value)}; allowed: {allowed[1]}", param=key, code="invalid_value")
    if key == "temperature":
        return float(value)
    if (key == "top_p" and value == 1) or (key == "top_k" and value < 1):
        return None
    return float(value) if key == "top_p" else value
