"""Names in a program that a person should look at: ways to reach the tests from inside. They change no verdict."""

from __future__ import annotations

import ast
import re
import warnings

_WORDS = (
    "_getframe",
    "currentframe",
    "f_back",
    "f_globals",
    "f_locals",
    "tb_frame",
    "settrace",
    "setprofile",
    "get_objects",
    "get_referrers",
    "__subclasses__",
    "__closure__",
    "sys.modules",
    "os._exit",
    "inspect.stack",
    "__main__",
    "/proc/",
)
_MODULES = ("gc", "ctypes", "_ctypes", "inspect", "builtins")
_WRITES = re.compile(r"(?:__builtins__|\bbuiltins)\s*(?:\[[^\]\n]*\]|\.\s*\w+)?\s*=(?!=)")
_MAIN_GUARD = re.compile(r"""if\s+__name__\s*==\s*['"]__main__['"]""")


def suspicious(source: str) -> tuple[str, ...]:
    """Lists what is worth a look.

    Args:
        source: the program.

    Returns:
        Sorted names: of frames, tracing, the garbage collector, ctypes, writes to builtins, os._exit and the like.
    """
    text = _MAIN_GUARD.sub("", source)
    found = {word for word in _WORDS if word in text}
    if _WRITES.search(text) or "setattr(builtins" in text.replace(" ", ""):
        found.add("builtins are written")
    return tuple(sorted(found | _imported(text)))


def _imported(text: str) -> set[str]:
    """Suspicious modules that are imported; a text that does not parse is searched by pattern."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {name for name in _MODULES if re.search(rf"\bimport\s+{name}\b|\bfrom\s+{name}\b", text)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # __import__("gc") and the like
            found.add(node.value)
    return found & set(_MODULES)
