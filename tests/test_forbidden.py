"""What no module and no test of this project may hold."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("kernels", "dare", "suites", "results", "leaderboard", "harness", "tests")
PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
MACHINE_PATH = re.compile(r"^/(work|home|root|Users|mnt)(/|$)")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")


def problems(path: Path) -> list[str]:
    """Forbidden things in one file, each with its line."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, str(path))
    found = [problem for node in ast.walk(tree) for problem in _node_problems(node)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and UNFINISHED.search(token.string):
            found.append((token.start[0], "unfinished work left in a comment"))
    if path.name.startswith("test_"):
        found += list(_idle_tests(tree))
    return [f"{path.name}:{line}: {what}" for line, what in sorted(found)]


def _node_problems(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        for name in names:
            if name.split(".")[0] in PICKLES:
                yield node.lineno, f"imports {name}; store safetensors, JSON or SQL"
    elif isinstance(node, ast.ExceptHandler):
        if node.type is None:
            yield node.lineno, "bare except"
        if all(isinstance(item, ast.Pass) or _is_ellipsis(item) for item in node.body):
            yield node.lineno, "an exception is swallowed in silence"
    elif isinstance(node, ast.Call):
        yield from _call_problems(node)
    elif isinstance(node, ast.Raise):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if isinstance(raised, ast.Name) and raised.id == "NotImplementedError":
            yield node.lineno, "a stub; write it, or leave it out"
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if _is_constant(key, "trust_remote_code") and not _is_constant(value, False):
                yield node.lineno, "trust_remote_code"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MACHINE_PATH.match(node.value):
        yield node.lineno, "a path of one machine"


def _call_problems(node: ast.Call) -> Iterator[tuple[int, str]]:
    keywords = {item.arg: item.value for item in node.keywords}
    if "trust_remote_code" in keywords and not _is_constant(keywords["trust_remote_code"], False):
        yield node.lineno, "trust_remote_code"
    if ast.unparse(node.func) == "torch.load" and not _is_constant(keywords.get("weights_only"), True):
        yield node.lineno, "torch.load unpickles; pass weights_only=True"
    if _is_constant(keywords.get("allow_pickle"), True):
        yield node.lineno, "allow_pickle"
    if _is_constant(keywords.get("shell"), True):
        yield node.lineno, "a command through a shell; pass a list"
    if ast.unparse(node.func).endswith("suppress") and {ast.unparse(item) for item in node.args} & {
        "Exception",
        "BaseException",
    }:
        yield node.lineno, "an exception is swallowed in silence"


def _idle_tests(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Test functions that assert nothing, neither themselves nor through a helper of the same file."""
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    asserting = {"raises", "warns", "fail", "expect"}
    for _ in range(3):  # helpers may call helpers
        asserting |= {function.name for function in functions if _asserts(function, asserting)}
    for function in functions:
        if function.name.startswith("test_") and function.name not in asserting:
            yield function.lineno, f"{function.name} asserts nothing"


def _asserts(function: ast.AST, asserting: set[str]) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in asserting or name.startswith("assert"):
                return True
    return False


def _is_ellipsis(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value == value


def test_nothing_forbidden_in_the_project():
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > len(FOLDERS)
    assert [str(path.parent.relative_to(ROOT)) + "/" + item for path in files for item in problems(path)] == []


PLANTED = [
    ("import pickle", "imports pickle"),
    ("from dill import dumps", "imports dill"),
    ("load('x', trust_remote_code=True)", "trust_remote_code"),
    ("load('x', trust_remote_code=flag)", "trust_remote_code"),
    ("options = {'trust_remote_code': True}", "trust_remote_code"),
    ("try:\n    f()\nexcept:\n    g()", "bare except"),
    ("try:\n    f()\nexcept ValueError:\n    pass", "swallowed in silence"),
    ("try:\n    f()\nexcept ValueError:\n    ...", "swallowed in silence"),
    ("with contextlib.suppress(Exception):\n    f()", "swallowed in silence"),
    ("def f():\n    raise NotImplementedError", "a stub"),
    ("def f():\n    raise NotImplementedError('later')", "a stub"),
    ("x = 1  # " + "TO" + "DO: y", "unfinished work"),
    ("state = torch.load(path)", "torch.load unpickles"),
    ("numpy.load(path, allow_pickle=True)", "allow_pickle"),
    ("subprocess.run('ls', shell=True)", "through a shell"),
    ("path = '/" + "home/someone/x'", "path of one machine"),
    ("def test_x():\n    f()", "test_x asserts nothing"),
    ("def test_x():\n    assert True", "test_x asserts nothing"),
]


@pytest.mark.parametrize(("source", "message"), PLANTED)
def test_a_planted_violation_is_found(tmp_path, source, message):
    path = tmp_path / "test_planted.py"
    path.write_text(source + "\n", encoding="utf-8")
    found = problems(path)
    assert len(found) == 1, found
    assert message in found[0]


ALLOWED = [
    "load('x', trust_remote_code=False)",
    "state = torch.load(path, weights_only=True)",
    "try:\n    f()\nexcept ValueError as error:\n    raise UserError('x') from error",
    "with contextlib.suppress(FileNotFoundError):\n    f()",
    "def test_x():\n    with pytest.raises(ValueError):\n        f()",
    "def helper(x):\n    assert x\ndef test_x():\n    helper(1)",
    "def test_x():\n    torch.testing.assert_close(a, b)",
]


@pytest.mark.parametrize("source", ALLOWED)
def test_what_is_allowed_passes(tmp_path, source):
    path = tmp_path / "test_planted.py"
    path.write_text(source + "\n", encoding="utf-8")
    assert problems(path) == []
