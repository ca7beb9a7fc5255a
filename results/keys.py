"""Canonical JSON, fingerprints and comparability keys.

Source: shared rules on fair comparison, section 8 (hard key, contract key, numerics key).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

#: Fields of the hard key; `hard_fields` makes the dictionary.
HARD_FIELDS = ("dataset", "prompt", "few_shot", "extraction", "decode_budget", "sampling", "metric")

#: Shown by `differing_fields` for a field that one side does not have.
ABSENT = "(absent)"

_EXACT = 2**53  # integers up to here are exact as binary64


def canonical_json(obj: Any) -> str:
    """Text of a JSON value that is equal for equal values.

    Keys are sorted by code point, nothing is escaped that need not be, there is no whitespace, and a whole float is
    written as the integer it equals (``1.0`` and ``1`` agree; ``True`` and ``1`` do not). Strings are taken as
    they are: a byte order mark or a trailing space counts.

    Args:
        obj: nested dict (string keys), list, tuple, str, int, finite float, bool or None.

    Returns:
        The text; encode as UTF-8 for hashing.

    Raises:
        TypeError: a value of another type, with its position.
        ValueError: a float that is not finite, with its position.
    """
    return json.dumps(_normal(obj, "$"), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _normal(obj: Any, where: str) -> Any:
    if obj is None or isinstance(obj, bool | str | int):
        return obj
    if isinstance(obj, float):
        if not math.isfinite(obj):
            raise ValueError(f"{where} is {obj!r}; canonical JSON holds finite numbers only")
        return int(obj) if obj.is_integer() and abs(obj) <= _EXACT else obj
    if isinstance(obj, Mapping):
        for key in obj:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r} of type {type(key).__name__}; keys must be strings")
        return {key: _normal(value, f"{where}.{key}") for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [_normal(value, f"{where}[{i}]") for i, value in enumerate(obj)]
    raise TypeError(
        f"{where} has type {type(obj).__name__}; allowed are dict, list, tuple, str, int, float, bool and None: "
        "convert it first, so that its text is chosen and not an accident"
    )


def to_json(obj: Any) -> str:
    """Serialise a value for a JSON column: key order kept, numbers of numpy accepted, NaN refused.

    Args:
        obj: JSON value.

    Returns:
        JSON text.

    Raises:
        TypeError: a value that is neither JSON nor a number of numpy.
        ValueError: a float that is not finite (PostgreSQL would refuse it, and no other reader must parse it).
    """
    return json.dumps(obj, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain)


def _plain(obj: Any) -> Any:
    if hasattr(obj, "item"):
        return obj.item()
    raise TypeError(f"{type(obj).__name__} cannot be stored in a JSON column: {obj!r}")


def fingerprint(obj: Any) -> str:
    """SHA-256 over the canonical JSON of everything that determines a result.

    Args:
        obj: JSON value, see `canonical_json`.

    Returns:
        64 hexadecimal digits.
    """
    return hashlib.sha256(canonical_json(obj).encode()).hexdigest()


def hard_fields(
    *,
    dataset: Mapping[str, Any],
    prompt: Mapping[str, Any],
    few_shot: Mapping[str, Any],
    extraction: Mapping[str, Any],
    decode_budget: Mapping[str, Any],
    sampling: Mapping[str, Any],
    metric: Mapping[str, Any],
) -> dict[str, Any]:
    """Fields of the hard key, all named, so that none is forgotten.

    Args:
        dataset: id, revision (commit or file SHA-256), split, hash of the ordered list of sample ids.
        prompt: hash of the rendered prompts of all samples as text, hash of the chat template, system prompt.
        few_shot: count, ids of the shots, order policy.
        extraction: scorer name and integer version.
        decode_budget: max new tokens, and the NFE cap or rule of the column's budget class.
        sampling: temperature, top-p, repeats K, seed policy, stop rules.
        metric: name, k for pass@k.

    Returns:
        Dictionary for `hard_key`, stored with the evaluation.
    """
    given = (dataset, prompt, few_shot, extraction, decode_budget, sampling, metric)
    return {name: dict(value) for name, value in zip(HARD_FIELDS, given, strict=True)}


def hard_key(fields: Mapping[str, Any]) -> str:
    """Key inside which rows are ranked together.

    Args:
        fields: see `hard_fields`.

    Returns:
        ``ck1:`` and 16 hexadecimal digits.

    Raises:
        ValueError: `fields` is empty.
    """
    return _key("ck1", fields)


def contract_key(fields: Mapping[str, Any]) -> str:
    """Key inside which "algorithm A beats algorithm B" may be said.

    Args:
        fields: base checkpoint revision, training-data hash, compute class, number of training seeds.

    Returns:
        ``tk1:`` and 16 hexadecimal digits.

    Raises:
        ValueError: `fields` is empty.
    """
    return _key("tk1", fields)


def numerics_key(fields: Mapping[str, Any]) -> str:
    """Soft key: rows that differ only here stay in one table and are marked.

    Args:
        fields: device, dtype, attention back end, engine and version, batch size, library versions, determinism.

    Returns:
        ``nk1:`` and 16 hexadecimal digits.

    Raises:
        ValueError: `fields` is empty.
    """
    return _key("nk1", fields)


def _key(prefix: str, fields: Mapping[str, Any]) -> str:
    if not fields:
        raise ValueError(f"a key {prefix} of no fields would make everything comparable; give the fields")
    return f"{prefix}:{fingerprint(fields)[:16]}"


def differing_fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Which fields of two keys differ, by name and both values.

    Args:
        a: fields of one row.
        b: fields of the other row.

    Returns:
        (dotted name, value in a, value in b), sorted by name; `ABSENT` stands for a missing field.
    """
    found: list[tuple[str, Any, Any]] = []
    for name in sorted({*a, *b}):
        left, right = a.get(name, ABSENT), b.get(name, ABSENT)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += [(f"{name}.{inner}", x, y) for inner, x, y in differing_fields(left, right)]
        elif name not in a or name not in b or canonical_json(left) != canonical_json(right):
            found.append((name, left, right))
    return found
