"""One file of recorded values, read and watched: what a comparison never looked at is found afterwards."""

from __future__ import annotations

import json
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dare_bench.dare.conformance.layout import BadReference
from dare_bench.dare.conformance.outcome import Outcome
from torch import Tensor

#: Largest difference that passes: absolute, and relative above 1. Recorded in float32.
TOLERANCE = 2e-5
#: Keys that describe a file.
_ABOUT = {"tolerance", "shapes", "config", "meaning", "settings"}


class Watched(dict):
    """A dict that knows which of its keys were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__({key: _watch(value) for key, value in values.items()})
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict."""
        self.read.add(key)
        return super().get(key, default)

    def values(self) -> ValuesView[Any]:
        """As of a dict; all keys are read."""
        self.read.update(self)
        return super().values()

    def items(self) -> ItemsView[str, Any]:
        """As of a dict; all keys are read."""
        self.read.update(self)
        return super().items()

    def unread(self, path: str = "") -> Iterator[str]:
        """Paths of values that were never read; sizes, ids and prose are not asked for."""
        for key in self:
            value, here = super().__getitem__(key), f"{path}{key}"
            if key in self.read:
                yield from _unread_below(value, here)
            elif key not in _ABOUT and not _is_prose(value):
                yield here


class Fixture:
    """Recorded values of one stem.

    Args:
        stem: file name without its ending.
        data: what the .json holds.
        tensors: what the .safetensors holds.
    """

    def __init__(self, stem: str, data: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> None:
        self.stem, self.data = stem, Watched(data)
        self._tensors = dict(tensors or {})
        self._seen: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __contains__(self, key: str) -> bool:
        return key in self.data or key in self._tensors

    @property
    def names(self) -> list[str]:
        """Names of the tensors in the .safetensors."""
        return sorted(self._tensors)

    def tensor(self, name: str, dtype: torch.dtype = torch.float64) -> Tensor:
        """A recorded tensor by name, or the top-level value of the .json.

        Args:
            name: whole name.
            dtype: of floating-point values; integers and booleans stay what they are.

        Raises:
            LookupError: neither file holds the name.
        """
        if name in self._tensors:
            self._seen.add(name)
            return self.array(self._tensors[name], dtype)
        if name in self.data:
            return self.array(self.data[name], dtype)
        raise LookupError(f"no recorded value {name!r}")

    @staticmethod
    def array(values: Any, dtype: torch.dtype = torch.float64) -> Tensor:
        """Numbers as a tensor: floats in `dtype`, integers int64, booleans bool.

        Args:
            values: a number, nested lists or a tensor.
            dtype: of floating-point values.
        """
        found = values if isinstance(values, Tensor) else torch.tensor(values, dtype=_kind(values, dtype))
        if found.is_floating_point():
            return found.to(dtype)
        return found if found.dtype == torch.bool else found.long()

    def unread(self) -> list[str]:
        """Recorded values that nothing has read."""
        return [*self.data.unread(), *(name for name in self._tensors if name not in self._seen)]


@dataclass(frozen=True)
class Compared:
    """One recorded value and what this installation gives for it.

    Attributes:
        name: for the table.
        expected, found: numbers, nested lists of them, or tensors, of equal shape; also strings, which must be equal.
        tolerance: largest difference that passes: absolute up to 1, relative above. Integers and booleans must be equal.
    """

    name: str
    expected: Any
    found: Any
    tolerance: float = TOLERANCE

    def outcome(self, subject: str) -> Outcome:
        """The difference as a row of the table."""
        if isinstance(self.expected, str):
            same = self.expected == self.found
            said = None if same else f"{self.found!r} instead of {self.expected!r}"
            return Outcome(subject, self.name, 1, float(not same), float(not same), 0.0, said)
        expected, found = (Fixture.array(_detached(value)) for value in (self.expected, self.found))
        if expected.shape != found.shape:
            shapes = f"recorded with shape {tuple(expected.shape)}, computed here with {tuple(found.shape)}"
            return Outcome(subject, self.name, problem=shapes)
        exact = not (expected.is_floating_point() or found.is_floating_point())
        expected, found = expected.double().flatten(), found.double().flatten()
        if not expected.numel():
            return Outcome(subject, self.name, problem="nothing to compare: the recorded value is empty")
        apart = (found - expected).abs() / expected.abs().clamp(min=1)
        apart = torch.where(found == expected, 0.0, apart)  # also infinities
        limit = 0.0 if exact else self.tolerance
        largest = float("nan") if bool(apart.isnan().any()) else float(apart.max())
        return Outcome(subject, self.name, apart.numel(), largest, float(apart.mean()), limit)


def read_fixture(stem: str, files: list[Path]) -> Fixture:
    """Read the files of a stem.

    Args:
        stem: their name.
        files: .json, .safetensors or both.

    Raises:
        BadReference: a file that is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    data: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            if path.suffix == ".json":
                data = json.loads(path.read_text(encoding="utf-8"))
            else:
                tensors = load_file(path)
        except (OSError, ValueError, SafetensorError) as error:
            said = " ".join(str(error).split())
            raise BadReference(f"{path}: not readable as {path.suffix[1:]} ({said}); copy the file again") from error
        if not isinstance(data, dict):
            raise BadReference(f"{path}: expected an object, found {type(data).__name__}; copy the file again")
    return Fixture(stem, data, tensors)


def _watch(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Watched(value)
    return [_watch(item) for item in value] if isinstance(value, list) else value


def _unread_below(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Watched):
        yield from value.unread(f"{path}.")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unread_below(item, f"{path}.{index}")


def _is_prose(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return value is None or isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def _kind(values: Any, dtype: torch.dtype) -> torch.dtype | None:
    """`dtype` if a float is among the values: torch would make float32 of Python floats."""
    if isinstance(values, (list, tuple)):
        return next((kind for item in values if (kind := _kind(item, dtype)) is not None), None)
    return dtype if isinstance(values, float) else None


def _detached(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value
