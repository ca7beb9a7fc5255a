"""Errors a user can cause or repair; their text says what is wrong, what is allowed, and the next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SuiteError(ValueError):
    """Base of everything this room raises on purpose; shown to users without a traceback."""


class DataError(SuiteError):
    """Benchmark rows that are missing, damaged, or not the published ones."""


class UnknownNameError(SuiteError):
    """A name that no registry entry has."""


class NotScorableError(SuiteError):
    """A benchmark whose answers cannot be graded by this version."""


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> UnknownNameError:
    """Builds the error for an unknown name, with the nearest allowed one.

    Args:
        kind: noun for the message, for example ``benchmark``.
        given: what was asked for.
        allowed: every valid name.

    Returns:
        The error, to be raised by the caller.
    """
    names = sorted(allowed)
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UnknownNameError(f"unknown {kind} {given!r}{hint} (allowed: {', '.join(names) or 'none'})")
