"""Plain aligned tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned with two spaces between; columns of numbers to the right.

    Args:
        head: column titles.
        rows: cells as text.
    """
    table = [list(head), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    is_number = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(head))]
    lines = []
    for row in table:
        cells = [
            cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(row, widths, is_number, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "", 1).replace("%", "").lstrip("-").isdigit()
