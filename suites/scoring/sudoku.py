"""Grades small Sudoku: finds the grid in a text, checks rows, columns, boxes and clues. Pure, linear in the text."""

from __future__ import annotations

import re
from math import isqrt

#: Cells of a 4x4 puzzle.
CELLS = 16
EMPTY = "0."

# Digits with what may stand between the cells of a drawn grid: space, bars, dividers, brackets, LaTeX columns.
_RUN = re.compile(r"[0-9](?:[\s|+\-,;&\\\[\]]*[0-9])*")
_DIGITS = re.compile(r"[0-9]+")
_NOT_DIGIT = re.compile(r"[^0-9]+")


def grid(text: str, cells: int = CELLS) -> str | None:
    """Returns the last complete grid of a text as digits, row by row.

    Args:
        text: answer; cells may be separated by spaces, line ends, bars and dividers, but not by words.
        cells: number of cells.

    Returns:
        Exactly `cells` digits; null when no group of digits has that length (nothing is padded, cut or put together).
    """
    found = None
    for run in _RUN.finditer(text):
        digits = _NOT_DIGIT.sub("", run[0])
        if len(digits) == cells:
            found = digits
        else:  # a puzzle and its solution on two lines make one run of two groups
            whole = [group for group in _DIGITS.findall(run[0]) if len(group) == cells]
            found = whole[-1] if whole else found
    return found


def is_puzzle(puzzle: str) -> bool:
    """Whether text is a puzzle: a square number of cells of a square side, digits, 0 or a dot for an empty cell."""
    side = isqrt(len(puzzle))
    box = isqrt(side)
    allowed = {*EMPTY, *map(str, range(1, side + 1))}
    return side > 1 and side * side == len(puzzle) and box * box == side and side < 10 and set(puzzle) <= allowed


def is_solved(answer: str | None, puzzle: str) -> bool:
    """Whether a grid is a solution: clues unchanged, every row, column and box has each digit once.

    Any valid completion counts: many published puzzles have several.
    """
    if answer is None or not is_puzzle(puzzle) or len(answer) != len(puzzle):
        return False
    if any(given not in EMPTY and given != cell for given, cell in zip(puzzle, answer, strict=True)):
        return False
    side = isqrt(len(puzzle))
    box = isqrt(side)
    wanted = set(map(str, range(1, side + 1)))
    units: list[list[str]] = [[] for _ in range(3 * side)]
    for place, cell in enumerate(answer):
        row, column = divmod(place, side)
        for unit in (row, side + column, 2 * side + row // box * box + column // box):
            units[unit].append(cell)
    return all(set(unit) == wanted for unit in units)


def share_right(answer: str, puzzle: str, solution: str) -> float:
    """Returns the share of originally empty cells that agree with a solution; 0 when nothing is empty.

    The three texts have the same length.
    """
    empty = [place for place, given in enumerate(puzzle) if given in EMPTY]
    right = sum(answer[place] == solution[place] for place in empty)
    return right / len(empty) if empty else 0.0


def changed_clues(answer: str, puzzle: str) -> int:
    """Returns how many given cells an answer overwrites."""
    return sum(given not in EMPTY and given != cell for given, cell in zip(puzzle, answer, strict=True))
