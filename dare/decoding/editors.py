"""What may change again: rewriting committed tokens of the current block. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dare_bench.dare.decoding import options as option_specs
from dare_bench.dare.decoding.options import number
from dare_bench.dare.families.registry import UnknownName


@dataclass(frozen=True)
class EditorEntry:
    """An editor.

    Attributes:
        name: as in `DecoderConfig.editor`.
        options: name -> default and allowed values.
        summary: one line.
    """

    name: str
    options: Mapping[str, option_specs.Option] = field(default_factory=dict)
    summary: str = ""


_EDITORS = {
    entry.name: entry
    for entry in (
        EditorEntry("none", {}, "Committed tokens stay."),
        EditorEntry(
            "token_editing",
            {
                "threshold": number("a number in [0, 1]", lambda value: 0 <= value <= 1, example=0.5),
                "max_post_steps": option_specs.natural(default=16),
            },
            "Tokens of the block that the model would replace with confidence above the threshold are replaced; a finished "
            "block is looked at again up to max_post_steps times (LLaDA2.1, arXiv 2602.08676).",
        ),
    )
}


def editors() -> dict[str, EditorEntry]:
    """All editors by name."""
    return dict(_EDITORS)


def resolve(name: str, options: Mapping[str, Any]) -> tuple[EditorEntry, dict[str, Any]]:
    """An editor with its complete options.

    Raises:
        UnknownName: for an unknown editor or option.
        ValueError: for a missing option or a value that is not allowed.
    """
    if name not in _EDITORS:
        raise UnknownName("editor", name, list(_EDITORS))
    entry = _EDITORS[name]
    return entry, option_specs.complete("editor", name, entry.options, options)
