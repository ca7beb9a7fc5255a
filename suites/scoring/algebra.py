"""Algebraic equality of two answers by Math-Verify and SymPy: the program of a worker process that may be killed.

`python -m dare_bench.suites.scoring.algebra` says "ready", then answers each JSON line with a JSON line. SymPy can hang or
fill the memory on a few characters, so memory is limited and an alarm ends the process, also when its parent is gone.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import sys
from typing import Any

#: Address space of a worker.
MAX_BYTES = 4 * 2**30

_OR = re.compile(r"\\(?:text|mbox)\s?\{\s*(?:or|and)\s*\}|\b(?:or|and)\b")
_BASE = re.compile(r"[0-9]\s?_")
_ASSIGNED = re.compile(r"^\s*[A-Za-z]\s*=\s*")


def equal(answer: str, gold: str) -> bool:
    r"""Whether two LaTeX answers are the same; may take any time and memory.

    Rational values are compared exactly. `a \pm b` and "a or b" are lists; lists are sets.
    """
    if (_is_set(answer) and _is_interval(gold)) or (_is_interval(answer) and _is_set(gold)):
        return False
    if _BASE.search(answer) and _BASE.search(gold):
        return False  # numbers of another base that are not the same text: Math-Verify drops the base
    first, second = _parsed(_listed(answer)), _parsed(_listed(gold))
    if not first or not second:
        return False
    exact = _rationals(first), _rationals(second)
    if exact[0] is not None and exact[1] is not None:
        return exact[0] == exact[1]
    from math_verify import verify

    if not verify(list(second), list(first), timeout_seconds=None):
        # A chain of inequalities on one side and an interval on the other, or an equation against its right side.
        return bool(verify(list(second), list(first), allow_set_relation_comp=True, strict=False, timeout_seconds=None)
                    and _is_chain(answer) != _is_chain(gold))  # fmt: skip
    return not _differ(first[0], second[0])


def _is_set(text: str) -> bool:
    return text.lstrip().startswith("\\{")


def _is_interval(text: str) -> bool:
    return text.replace("\\left", "").lstrip().startswith(("(", "[")) and "," in text


def _is_chain(text: str) -> bool:
    return re.search(r"\\(?:le|ge)q?(?![a-z])|[<>≤≥]|\\[lg]t(?![a-z])", text) is not None


def _listed(text: str) -> str:
    r"""Returns the text with `\pm` written as two values and "or" as a comma."""
    parts = [_ASSIGNED.sub("", part) for part in _OR.split(text)] if _OR.search(text) else [text]
    found = []
    for part in parts:
        if part.count("\\pm") == 1 and "," not in part:
            found += [part.replace("\\pm", "+"), part.replace("\\pm", "-")]
        else:
            found.append(part)
    return ", ".join(part.strip() for part in found)


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Any, ...]:
    """Returns Math-Verify's readings of an answer, the expression first."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    return tuple(
        parse(
            f"$\\boxed{{{text}}}$",
            extraction_config=[LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()],
            parsing_timeout=None,
        )
    )


def _rationals(parsed: tuple[Any, ...]) -> Any:
    """Returns the exact rational value of an answer, or null."""
    import sympy

    value = parsed[0]
    if isinstance(value, sympy.Expr) and not value.free_symbols:
        value = sympy.nsimplify(value.doit(), rational=True) if value.has(sympy.Float) else value.doit()
        return value if value.is_Rational else None
    return None


def _differ(first: Any, second: Any) -> bool:
    """Whether two closed expressions have clearly different values: a check on what was accepted by rounding."""
    import sympy

    if not all(isinstance(value, sympy.Expr) and not value.free_symbols for value in (first, second)):
        return False
    if any(value.has(sympy.Float) for value in (first, second)):
        return False
    gap = (first - second).evalf(30)
    size = max(abs(complex(first.evalf(30))), abs(complex(second.evalf(30))))
    return bool(gap.is_number and abs(complex(gap)) > 1e-12 * size)


def main() -> None:
    """Says "ready", then answers questions `{"answer", "gold", "seconds"}` from standard input until it ends."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on every system; the time limit remains
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    equal("1+x", "x+1")  # imports and caches: the time of a question is then its own
    out.write("ready\n")
    out.flush()
    for line in sys.stdin:
        question = json.loads(line)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, float(question["seconds"]))  # its default action ends the process
        try:
            found, problem = equal(question["answer"], question["gold"]), ""
        except Exception as error:  # parsers raise anything on hostile text; the verdict is "not equal"
            found, problem = False, type(error).__name__
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        out.write(json.dumps({"equal": bool(found), "problem": problem}) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
