"""What may change again: rewriting committed tokens of the current block. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dare_bench.dare.families.registry import UnknownName


@dataclass(frozen=True)
class EditorEntry:
    """An editor.

    Attributes:
        name: as in `DecoderConfig.editor`.
        options: option -> default (None = must be given).
        summary: one line.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""


_EDITORS = {
    entry.name: entry
    for entry in (
        EditorEntry("none", {}, "Committed tokens stay."),
        EditorEntry(
            "token_editing",
            {"threshold": None, "max_post_steps": 16},
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
        ValueError: for a missing option or a value out of range.
    """
    if name not in _EDITORS:
        raise UnknownName("editor", name, list(_EDITORS))
    entry = _EDITORS[name]
    for option in options:
        if option not in entry.options:
            raise UnknownName(f"option of editor {name!r}", option, list(entry.options) or ["(none)"])
    merged = {**entry.options, **options}
    missing = [option for option, value in merged.items() if value is None]
    if missing:
        raise ValueError(f"editor {name!r} needs {', '.join(missing)}, for example editor_options: {{threshold: 0.5}}")
    if "threshold" in merged and not 0 <= merged["threshold"] <= 1:
        raise ValueError(f"editor {name!r}: threshold is {merged['threshold']!r}; allowed: a number in [0, 1]")
    if "max_post_steps" in merged and merged["max_post_steps"] < 0:
        raise ValueError(f"editor {name!r}: max_post_steps is {merged['max_post_steps']!r}; allowed: 0 or more")
    return entry, merged
