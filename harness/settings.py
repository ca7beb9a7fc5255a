"""Check plain values against the fields of a frozen dataclass (TrainConfig, an algorithm's config, DecoderConfig)."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

from dare_bench.harness.errors import shorten
from dare_bench.harness.manifest_problems import allowed_of
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError


@dataclasses.dataclass(frozen=True)
class FieldError:
    """A value that does not fit its field: `allowed` is in words."""

    field: str
    message: str
    given: str
    allowed: str


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Names and resolved types of a dataclass's init fields."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


@functools.cache
def _adapter(cls: type, field: str) -> TypeAdapter[Any]:
    hint = field_types(cls)[field]
    try:
        return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True))
    except (PydanticSchemaGenerationError, TypeError) as error:
        raise TypeError(f"{cls.__name__}.{field} has the type {hint}, which a manifest cannot express") from error


def check_fields(cls: type, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[FieldError]]:
    """Check each value against the type of its field; every field of `values` must exist.

    Args:
        cls: a dataclass.
        values: field -> plain value.

    Returns:
        Checked values (lists become tuples where the field is a tuple), and what is wrong.
    """
    checked: dict[str, Any] = {}
    errors: list[FieldError] = []
    for field, value in values.items():
        if isinstance(value, list) and _takes_tuple(field_types(cls)[field]):
            value = tuple(value)
        try:
            checked[field] = _adapter(cls, field).validate_python(value)
        except ValidationError as error:
            allowed = " or ".join(dict.fromkeys(allowed_of(item) for item in error.errors()))
            errors.append(FieldError(field, "wrong value for its type", shorten(value), allowed))
    return checked, errors


def build(cls: type, values: Mapping[str, Any]) -> tuple[Any, list[FieldError]]:
    """Check values and construct the dataclass.

    Args:
        cls: a dataclass whose `__post_init__` may raise ValueError.
        values: field -> plain value.

    Returns:
        (instance or None, errors). An error of the whole object has the field ``""``.
    """
    checked, errors = check_fields(cls, values)
    if errors:
        return None, errors
    try:
        return cls(**checked), []
    except (ValueError, TypeError) as error:
        named = [field for field in values if field in str(error)]
        field = named[0] if named else ""
        given = shorten(values[field]) if field else shorten(dict(values))
        return None, [FieldError(field, "not a valid setting", given, str(error))]


def plain(instance: Any) -> dict[str, Any]:
    """A dataclass instance as JSON values."""
    return typing.cast("dict[str, Any]", _plain(dataclasses.asdict(instance)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _takes_tuple(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_takes_tuple(part) for part in typing.get_args(hint))
    return hint is tuple or typing.get_origin(hint) is tuple
