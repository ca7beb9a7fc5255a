"""Options of the engine's plug-in parts as data: default, what is allowed, and the check. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dare_bench.dare.families.registry import UnknownName


@dataclass(frozen=True)
class Option:
    """One option of a selector, scheduler or weighting.

    Attributes:
        allowed: which values are, in words.
        accepts: whether a value is one of them.
        default: value when it is left out; null with `required` means that it must be given.
        required: whether it must be given.
        example: a value for messages.
    """

    allowed: str
    accepts: Callable[[Any], bool]
    default: Any = None
    required: bool = False
    example: Any = None


def number(allowed: str, accepts: Callable[[float], bool], *, default: Any = None, example: Any = None) -> Option:
    """A finite number; required without a default.

    Args:
        allowed: for example ``a number in (0, 1]``.
        accepts: whether a finite number is allowed.
        default: value when it is left out.
        example: value in messages.
    """

    def check(value: Any) -> bool:
        return (
            not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value) and accepts(value)
        )

    return Option(allowed, check, default, default is None, example)


def share(*, default: float | None = None, example: Any = 0.9) -> Option:
    """A number in (0, 1]."""
    return number("a number in (0, 1]", lambda value: 0 < value <= 1, default=default, example=example)


def count(*, default: int | None = None, example: Any = 4) -> Option:
    """A positive whole number; required without a default."""
    return Option("a positive whole number", _is_count, default, default is None, example)


def natural(*, default: int) -> Option:
    """A whole number from 0."""
    return Option("a whole number >= 0", lambda value: _is_count(value) or (value == 0 and type(value) is int), default)


def flag() -> Option:
    """True or false, off unless given."""
    return Option("true or false", lambda value: isinstance(value, bool), False)


def choice(*names: str) -> Option:
    """One of some names; the first is the default."""
    return Option(" or ".join(names), lambda value: isinstance(value, str) and value in names, names[0])


def or_null(option: Option) -> Option:
    """The same option, which may be left out or null."""
    return Option(f"{option.allowed}, or null", lambda value: value is None or option.accepts(value))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def main_option(options: Mapping[str, Option]) -> str | None:
    """The option that ``{name: value}`` sets: the only required one, or the only one."""
    required = [name for name, option in options.items() if option.required]
    if len(required) == 1:
        return required[0]
    return next(iter(options)) if len(options) == 1 else None


def complete(kind: str, name: str, known: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Given options with the defaults of the others.

    Args:
        kind: of part, for messages: ``selector``.
        name: of the part.
        known: its options.
        given: option -> value.

    Returns:
        Every option with its value.

    Raises:
        UnknownName: for an option that the part does not have, with the nearest name.
        ValueError: for a missing option or a value that is not allowed.
    """
    for option in given:
        if option not in known:
            raise UnknownName(f"option of {kind} {name!r}", str(option), list(known) or ["(none)"])
    missing = [option for option, spec in known.items() if spec.required and given.get(option) is None]
    if missing:
        main = main_option(known)
        shown = ", ".join(f"{option}: {spec.example}" for option, spec in known.items() if spec.required)
        example = f"{known[main].example}" if main in missing else f"{{{shown}}}"
        raise ValueError(f"{kind} {name!r} needs {', '.join(missing)}, for example {{{name}: {example}}}")
    values = {option: given.get(option, spec.default) for option, spec in known.items()}
    for option, value in values.items():
        if not known[option].accepts(value):
            raise ValueError(f"{kind} {name!r}: {option} is {value!r}; allowed: {known[option].allowed}")
    return values
