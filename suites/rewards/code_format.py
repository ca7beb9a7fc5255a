"""`code_format`: one fenced Python block that parses."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass

from dare_bench.suites.benchmarks.base import Row
from dare_bench.suites.rewards.base import Options, Reward
from dare_bench.suites.rewards.registry import reward

FENCE = "```"
#: A longer block is not parsed: it is no answer, and the parser's cost and nesting stay bounded.
MAX_CODE_CHARS = 20_000

_BLOCK = re.compile(r"```python[ \t]*\n(?P<code>.*?)```(?P<rest>[^`]*)", re.DOTALL)


@dataclass(frozen=True)
class CodeFormatOptions(Options):
    """Options of `code_format`.

    Attributes:
        strict_newline: published pattern: the closing fence must be followed by exactly a line end.
    """

    strict_newline: bool = False


@reward
class CodeFormat(Reward):
    """1 for exactly one fenced Python block, at the end, that parses; 0.5 if it does not parse; else 0.

    Source: DiffuCoder (arXiv 2506.20639), whose pattern refuses a block that ends with the text.
    """

    name = "code_format"
    summary = "1 for one fenced python block at the end that parses, 0.5 with a syntax error, else 0"
    options_class = CodeFormatOptions
    columns = ()

    def grade(self, text: str, row: Row) -> float:
        """Grades the form alone; nothing is run."""
        code = block(text, strict_newline=self.options.strict_newline)
        if code is None:
            return 0.0
        return 1.0 if parses(code) else 0.5


def block(text: str, *, strict_newline: bool = False) -> str | None:
    """Returns the code of the only fenced block of a text, or null.

    Args:
        text: answer up to its end token.
        strict_newline: whether the text must end with the line end behind the closing fence.

    Returns:
        The code; null when there is no block, another one, no ``python`` behind the fence, or text behind the block.
    """
    if text.count(FENCE) != 2:
        return None
    found = _BLOCK.search(text)
    if found is None or found.end() != len(text):
        return None
    is_end = found["rest"] == "\n" if strict_newline else not found["rest"].strip()
    return found["code"] if is_end else None


def parses(code: str) -> bool:
    """Whether text is a Python program by its syntax; never raises."""
    if len(code) > MAX_CODE_CHARS:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "invalid escape sequence" is the model's affair, not the log's
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
