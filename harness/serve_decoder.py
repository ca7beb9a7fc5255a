"""Decoder settings of a request: OpenAI's sampling keys, and `decoder` as in a manifest. Imports no torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from dare_bench.dare.decoding import selectors
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.harness.errors import nearest, shorten
from dare_bench.harness.manifest import DecoderFields
from dare_bench.harness.manifest_problems import allowed_of
from dare_bench.harness.manifest_yaml import Document
from dare_bench.harness.reporter import Reporter
from dare_bench.harness.resolve_decoding import resolve_fields
from dare_bench.harness.resolve_pairs import unhonoured
from dare_bench.harness.resolve_parts import PARTS
from dare_bench.harness.serve_errors import Refusal
from dare_bench.harness.settings import build
from pydantic import ValidationError

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
    changed = tuple(field for field, value in given.items() if value is not None and value != getattr(default, field))
    ignored = unhonoured(changed, family)
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
    """The key `decoder`, written as in a manifest; a part's options may also stand in ``<part>_options``."""
    known = [*DecoderFields.model_fields, *(f"{part}_options" for part in PARTS)]
    if not isinstance(given, dict):
        said = f"decoder is {shorten(given)}; allowed: an object with {', '.join(known)}"
        raise Refusal(400, said, param="decoder", code="invalid_value")
    for key in given:
        if key not in known:
            near = nearest(key, known)
            hint = f" (did you mean {near}?)" if near else ""
            said = f"unknown decoder option {shorten(key)}{hint}; allowed: {', '.join(known)}"
            raise Refusal(400, said, param=f"decoder.{key}", code="unknown_key")
    values = _folded(given, default)
    try:
        item = DecoderFields.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        param = f"decoder.{first['loc'][0]}"
        allowed = "a name, {name: value} or {name: {option: value}}" if first["loc"][0] in PARTS else allowed_of(first)
        said = f"{param} is {shorten(values[str(first['loc'][0])])}; allowed: {allowed}"
        raise Refusal(400, said, param=param, code="invalid_value") from error
    report = Reporter(Document("request", "", {"decoder": values}))
    own = {"selector": default.selector, "selector_options": default.selector_options}
    is_own = default.selector not in selectors.selectors()  # a rule of the family's own engine
    fields = resolve_fields(report, ("decoder",), item, own if is_own else None)
    if fields is None:
        problem = report.problems[0]
        said = f"{problem.key}: {problem.message}" + (f": {problem.given}" if problem.given else "")
        said += f"; allowed: {problem.allowed}" if problem.allowed else ""
        said += f"; did you mean {problem.nearest}?" if problem.nearest else ""
        raise Refusal(400, said, param=problem.key, code="invalid_value")
    return fields


def _folded(given: Mapping[str, Any], default: DecoderConfig) -> dict[str, Any]:
    """``selector`` and ``selector_options`` as ``selector: {name: options}``, and so for every part."""
    values = {key: value for key, value in given.items() if not key.endswith("_options")}
    for part in PARTS:
        key = f"{part}_options"
        name = values.get(part, getattr(default, part))
        if key not in given:
            if part in values and name == getattr(default, part):
                values[part] = {name: dict(getattr(default, key))}  # the same rule keeps the server's options
            continue
        if not isinstance(given[key], dict) or not isinstance(name, str):
            said = f"decoder.{key} is {shorten(given[key])}; allowed: an object, beside the name of the {part}"
            raise Refusal(400, said, param=f"decoder.{key}", code="invalid_value")
        values[part] = {name: given[key]}
    return values


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
