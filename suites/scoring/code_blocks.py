"""Finds the program in an answer: fences, markers, the function that is asked for. Pure; runs nothing."""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
import warnings
from collections.abc import Iterable, Sequence

from dare_bench.suites.scoring.boxes import before_end

#: A longer answer is cut: it is no function, and the parser's cost stays bounded.
MAX_CHARS = 50_000

_TICKS = re.compile(r"```+[ \t]*(?P<language>[\w+#.-]*)(?P<end>[ \t]*(?:\n|$))?")
_LANGUAGES = {"python", "python2", "python3", "py", "py3"}
_KEPT = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.FunctionDef, ast.ClassDef)
_QUOTES = ("'''", '"""', "'", '"')


def plain(text: str) -> str:
    r"""Returns an answer without end tokens, ``\r\n`` and tabs."""
    return before_end(text)[:MAX_CHARS].replace("\r\n", "\n").replace("\r", "\n").expandtabs(4)


def blocks(text: str) -> list[str]:
    """Returns the fenced blocks of a text, in order.

    Args:
        text: the answer.

    Returns:
        Their contents. The language may have any case or be missing; a block that is never closed ends with the text;
        a fence with a language inside an open block begins a new one.
    """
    text = plain(text)
    found, start = [], None
    for match in _TICKS.finditer(text):
        is_python = match["language"].lower() in _LANGUAGES
        if start is not None:
            found.append(text[start : match.start()])
            start = None
            if not is_python:
                continue
        # Without a line end behind it, a word that is no language is the first one of the code.
        start = match.end() if match["end"] is not None or is_python else match.start("language")
    if start is not None:
        found.append(text[start:])
    return found


def compiles(code: str) -> bool:
    """Whether a text is a program; unlike parsing alone this refuses a ``return`` outside a function. Never raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True


def functions(code: str) -> list[str]:
    """Returns the names of the functions and classes of a module, and of names bound to a lambda; none if it has errors."""
    tree = _tree(code)
    if tree is None:
        return []
    names = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Lambda, ast.Name, ast.Attribute)):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return names


def extract(text: str, entry_point: str | None = None) -> str | None:
    """Returns the program of an answer.

    Args:
        text: the answer as decoded, special tokens possibly left in.
        entry_point: the function that is asked for; null = any.

    Returns:
        The last fenced block that defines the function (null entry point: the last one that compiles); without fences
        the text before ``[DONE]`` without ``[BEGIN]`` and quotes around it. Null: no such program.
    """
    fenced = blocks(text)
    for code in reversed(fenced or [_unmarked(text)]):
        code = textwrap.dedent(code)
        if compiles(code) and (entry_point is None or entry_point in functions(code)):
            return code
    return _among_prose(text, entry_point) if not fenced and entry_point is not None else None


def reduced(code: str) -> str:
    """Returns a program without the lines that only try it out.

    Args:
        code: the program.

    Returns:
        Its imports, assignments, functions and classes (also under ``if`` and ``try``); what asks for input is left out.
        A text with errors is returned as it is.
    """
    tree = _tree(code)
    if tree is None:
        return code
    try:
        return ast.unparse(ast.Module([node for node in tree.body if _is_kept(node)], []))
    except RecursionError:  # it compiles, but is nested deeper than it can be written again
        return code


def completions(text: str, prompt: str, entry_point: str) -> list[str]:
    """Returns the programs that an answer to "complete this function" may mean, the likeliest first.

    Args:
        text: the answer.
        prompt: the beginning of the program: imports, signature, docstring.
        entry_point: the function that is asked for.

    Returns:
        With a whole function: the prompt's imports and helpers with the reduced program. Otherwise the answer as body:
        as it is, with its first line indented, with all lines indented; only those that compile and define the
        function. Empty: none does.
    """
    whole = extract(text, entry_point)
    if whole is not None:
        return [f"{_context(prompt, entry_point)}\n{reduced(whole)}\n"]
    fenced = blocks(text)
    body = (fenced[-1] if fenced else _unmarked(text)).rstrip().lstrip("\n")
    tried = (body, "    " + body.lstrip(" "), textwrap.indent(textwrap.dedent(body), "    "))
    found = []
    for variant in tried:
        program = f"{prompt.expandtabs(4).rstrip()}\n{variant}\n"
        has_body = variant.strip() and compiles(program) and _has_body(program, entry_point)
        if has_body and program not in found:
            found.append(program)
    return found


def entry_point_of(tests: str | Sequence[str], code: str) -> str | None:
    """Returns the function of a program that tests call.

    Args:
        tests: assert statements, or one text.
        code: a program that passes them, or the answer's.

    Returns:
        The first of its functions, by the order of calls in the tests, wherever in an expression the call stands; null
        when the tests call none.
    """
    defined = set(functions(code))
    for text in [tests] if isinstance(tests, str) else tests:
        tree = _tree(text)
        if tree is None:
            continue
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        for node in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
            if node.func.id in defined:
                return node.func.id
    return None


def called(tests: Iterable[str]) -> str | None:
    """Returns the name that tests call most that is no builtin: the entry point where no program says it."""
    counts: dict[str, int] = {}
    for text in tests:
        tree = _tree(text)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not hasattr(builtins, node.func.id):
                counts[node.func.id] = counts.get(node.func.id, 0) + 1
    return max(counts, key=lambda name: counts[name]) if counts else None


def _tree(code: str) -> ast.Module | None:
    if not compiles(code):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def _unmarked(text: str) -> str:
    """Returns the text before [DONE], without [BEGIN] and quotes around it."""
    body = plain(text).partition("[DONE]")[0].replace("[BEGIN]", "", 1)
    inner = body.strip()
    for quote in _QUOTES:
        if len(inner) >= 2 * len(quote) and inner.startswith(quote) and inner.endswith(quote):
            return inner[len(quote) : -len(quote)]
    return body


def _among_prose(text: str, entry_point: str) -> str | None:
    """Returns the longest program that begins at an import or definition at the left margin of a text without fences."""
    lines = _unmarked(text).split("\n")
    starts = [number for number, line in enumerate(lines) if re.match(r"(?:from|import|def|class|async def|@)\b", line)]
    for start in starts[:20]:
        for end in _ends(lines, start):
            code = "\n".join(lines[start:end])
            if compiles(code) and entry_point in functions(code):
                return code
    return None


def _ends(lines: Sequence[str], start: int) -> list[int]:
    """Returns where a program that begins at a line may end: before lines at the left margin, the last first."""
    margins = [number for number in range(start + 1, len(lines)) if lines[number][:1].strip()]
    return [len(lines), *reversed(margins)][:40]


def _is_kept(node: ast.stmt) -> bool:
    """Whether a statement of a module makes something that a function may need."""
    if isinstance(node, ast.If) and "__name__" not in ast.unparse(node.test):
        return all(_is_kept(inner) for inner in (*node.body, *node.orelse))
    if isinstance(node, ast.Try):
        parts = (*node.body, *node.orelse, *node.finalbody, *(item for part in node.handlers for item in part.body))
        return all(_is_kept(inner) for inner in parts)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass)):
        return True
    return isinstance(node, _KEPT) and not any(
        isinstance(inner, ast.Call) and ast.unparse(inner.func) == "input" for inner in ast.walk(node)
    )


def _context(prompt: str, entry_point: str) -> str:
    """Returns imports, assignments and helper functions of a prompt, without the function that is to be written."""
    text = prompt.expandtabs(4)
    tree = _tree(text) or _tree(text.rstrip() + "\n    pass\n")
    if tree is None:
        return "\n".join(line for line in text.split("\n") if re.match(r"(?:from|import)\s", line))
    kept = [node for node in tree.body if getattr(node, "name", None) != entry_point and isinstance(node, _KEPT)]
    return ast.unparse(ast.Module(kept, []))


def _has_body(program: str, entry_point: str) -> bool:
    """Whether the function has statements behind its docstring."""
    tree = _tree(program)
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.FunctionDef) and node.name == entry_point:
            return any(not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)) for item in node.body)
    return False
