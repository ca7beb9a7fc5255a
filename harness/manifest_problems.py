"""Errors of the manifest's shape as problems with a place, what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dare_bench.harness.errors import Problem, nearest, shorten
from dare_bench.harness.manifest_yaml import Document, KeyPath
from pydantic import BaseModel

#: Sections that are lists of entries.
SECTIONS = ("models", "algorithms", "benchmarks", "decoders", "exclude")

_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a name or a mapping",
    "too_short": "at least one entry",
    "string_too_short": "text that is not empty",
    "string_pattern_mismatch": "letters, digits and . _ + - (at most 64, first a letter or digit)",
}
_BOUNDS = {"ge": ">=", "gt": ">", "lt": "<", "le": "<="}


def allowed_of(error: dict[str, Any]) -> str:
    """What is allowed, in words, for a pydantic error."""
    context = error.get("ctx") or {}
    if error["type"] in _KINDS:
        return _KINDS[error["type"]]
    if error["type"] == "literal_error":
        return str(context.get("expected"))
    for key, sign in _BOUNDS.items():
        if key in context:
            return f"a number {sign} {context[key]:g}"
    return str(error["msg"])


def problem_of(
    document: Document, error: Any, model_at: Callable[[KeyPath], type[BaseModel] | None], plain: set[tuple[str, int]]
) -> Problem:
    """A pydantic error as a problem with its place.

    Args:
        document: positions.
        error: one of `ValidationError.errors()`.
        model_at: the model of the mapping at a key path.
        plain: (section, index) of items that the user wrote as bare names.
    """
    path = tuple(part for part in error["loc"] if not _is_union_tag(part))
    model = model_at(path[:-1])
    if error["type"] == "missing":
        fields = ", ".join(_names(model)) if model else "see `dare-bench list suites`"
        return document.problem(path, "a required key is missing", given="nothing", allowed=f"keys here: {fields}")
    if error["type"] == "extra_forbidden":
        known = _names(model) if model else []
        return document.problem(
            path,
            "unknown key",
            given=shorten(error["input"]),
            allowed=", ".join(known),
            nearest=nearest(path[-1], known),
        )
    if path and path[-1] == "name" and path[:-1] in plain:  # the user wrote a bare name, not `name:`
        path = path[:-1]
    message = "must not be empty" if error["type"] == "too_short" else "wrong value"
    if error["type"].endswith(("_type", "_from_float")):
        message = "wrong type"
    given, allowed = shorten(error["input"]), allowed_of(error)
    if path and path[-1] == "peft":
        allowed = "lora, {r: 32, alpha: 64, dropout: 0, experts: false} or null"
    if path[:2] == ("train", "data") and len(path) == 3:
        allowed = "a split or a list of splits"
    if path and path[-1] in ("selector", "scheduler", "cache", "editor", "weighting"):
        allowed = f"name of the {path[-1]}, {{name: value}} or {{name: {{option: value}}}}"
    if len(path) == 3 and path[0] == "models" and path[-1] == "decoder":
        allowed = "a mapping of decoder settings, for example {steps_per_block: 8}"
    if len(path) == 1 and path[0] in SECTIONS and error["type"] == "list_type":
        allowed = f"a list, for example [{'base' if path[0] == 'algorithms' else 'NAME'}]"
    return document.problem(path, message, given=given, allowed=allowed)


def _is_union_tag(part: str | int) -> bool:
    """Whether pydantic added this part of a location for a member of a union (not a key of ours)."""
    return isinstance(part, str) and (
        part in {"str", "int", "LoraItem"}
        or part.startswith(("list[", "dict[", "literal[", "function-", "constrained-"))
    )


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]
