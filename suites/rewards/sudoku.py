"""`sudoku`: how much of the grid is right."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dare_bench.suites.benchmarks.base import Row
from dare_bench.suites.errors import SuiteError
from dare_bench.suites.rewards.base import Options, Reward
from dare_bench.suites.rewards.registry import reward
from dare_bench.suites.scoring import sudoku
from dare_bench.suites.scoring.tags import last_tag


@dataclass(frozen=True)
class SudokuOptions(Options):
    """Options of `sudoku`.

    Attributes:
        partial: pay the share of empty cells that are right; false pays 1 for a solved puzzle, else 0.
        d1_digits: published reading: all digits of the tag put together, cut or filled with zeros; clues are ignored.
    """

    partial: bool = True
    d1_digits: bool = False


@reward
class Sudoku(Reward):
    """Share of originally empty cells that are right, 1 for any valid completion; a changed clue cancels a right cell.

    The answer is the last group of 16 digits in the last answer tag; spaces, line ends and drawn lines do not matter.
    Partial credit is no accuracy: `exact` says how many puzzles are solved. Source: d1 (arXiv 2504.12216).
    """

    name = "sudoku"
    summary = "share of originally empty cells that are right, less changed clues; 1 if solved (4x4)"
    options_class = SudokuOptions
    columns = ("gold", "puzzle")

    def grade(self, text: str, row: Row) -> float:
        """Grades the grid in the last answer tag; `puzzle` holds the clues, the gold is a solution."""
        puzzle, solution = _task(row)
        answer = last_tag(text)
        if answer is None:
            return 0.0
        if self.options.d1_digits:
            digits = re.sub(r"[^0-9]", "", answer)[: len(puzzle)].ljust(len(puzzle), "0")
            return sudoku.share_right(digits, puzzle, solution)
        cells = sudoku.grid(answer, len(puzzle))
        if cells is None:
            return 0.0
        if sudoku.is_solved(cells, puzzle):
            return 1.0
        if not self.options.partial:
            return 0.0
        lost = sudoku.changed_clues(cells, puzzle) / max(1, sum(cell in sudoku.EMPTY for cell in puzzle))
        return max(0.0, sudoku.share_right(cells, puzzle, solution) - lost)

    def exact(self, text: str, row: Row) -> float:
        """Returns 1 for a solved puzzle."""
        puzzle, _ = _task(row)
        answer = last_tag(text)
        return float(answer is not None and sudoku.is_solved(sudoku.grid(answer, len(puzzle)), puzzle))


def _task(row: Row) -> tuple[str, str]:
    """Returns the puzzle and a solution of a row."""
    puzzle, solution = str(row.columns["puzzle"]).strip(), row.gold.strip()
    if not sudoku.is_puzzle(puzzle) or len(solution) != len(puzzle):
        raise SuiteError(
            f"sudoku: row {row.id} has the puzzle {puzzle!r} and the solution {solution!r}; "
            "expected 16 digits each, 0 for an empty cell"
        )
    return puzzle, solution
