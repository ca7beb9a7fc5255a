"""Who may import whom, as data; every module's imports are parsed and held against it (DESIGN, section 1)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# room -> rooms it may import, besides itself
EDGES = {
    "kernels": set(),
    "dare": {"kernels"},
    "results": set(),
    "leaderboard": {"results"},
    "suites": set(),
    "harness": {"kernels", "dare", "results", "leaderboard", "suites"},
}
# Packages that load torch when they are imported, and where they may be named at all.
CARRY_TORCH = {"torch", "transformers", "accelerate", "peft", "trl", "lm_eval"}
MAY_NAME_TORCH = ("kernels", "dare", "harness.jobs")
# Importing one of these may not load torch, by whatever chain of imports.
TORCH_FREE = (
    "suites",
    "results",
    "leaderboard",
    "harness",
    "dare.lazy",
    "dare.randomness",
    "dare.decoding.config",
    "dare.decoding.generation",
    "dare.decoding.selectors",
    "dare.training.config",
    "dare.families.registry",
    "dare.families.facts",
    "dare.algorithms.registry",
)
MAY_LOAD_TORCH = ("harness.jobs",)


@dataclass(frozen=True)
class Import:
    """One imported name: `target` is absolute, `at_load` tells whether it runs when the module is imported."""

    target: str
    line: int
    at_load: bool
    types_only: bool


def modules(root: Path) -> dict[str, Path]:
    """Dotted name without the ``dare_bench.`` prefix -> file, for every module of every room."""
    found = {}
    for room in EDGES:
        for path in sorted((root / room).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, name: str) -> Iterator[Import]:
    """Every import of a module, also those in functions and through importlib or `lazy_import`."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    yield from _walk(ast.parse(path.read_text(encoding="utf-8"), str(path)), package, at_load=True, types_only=False)


def _walk(node: ast.AST, package: str, *, at_load: bool, types_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, at_load, types_only)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                parents = ["dare_bench", *package.split(".")]
                base = ".".join([*parents[: len(parents) - child.level + 1], *([base] if base else [])])
            for alias in child.names:
                yield Import(f"{base}.{alias.name}", child.lineno, at_load, types_only)
        elif isinstance(child, ast.Call) and (target := _dynamic(child)):
            yield Import(target, child.lineno, False, types_only)
            yield from _walk(child, package, at_load=at_load, types_only=types_only)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for part in child.body:
                yield from _walk(ast.Module([part], []), package, at_load=False, types_only=True)
            for part in child.orelse:
                yield from _walk(ast.Module([part], []), package, at_load=at_load, types_only=types_only)
        else:
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _walk(child, package, at_load=at_load and not is_function, types_only=types_only)


def _dynamic(call: ast.Call) -> str | None:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    if name in {"import_module", "__import__", "lazy_import"} and call.args:
        argument = call.args[0]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            return argument.value
    return None


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def violations(root: Path) -> list[str]:
    """All broken layering rules below `root`, one sentence each."""
    known = modules(root)
    found = {name: list(imports(path, name)) for name, path in known.items()}
    problems = []
    for name, items in found.items():
        room = name.split(".")[0]
        for item in items:
            where = f"{known[name].relative_to(root)}:{item.line}"
            first, _, rest = item.target.partition(".")
            if first in EDGES:
                problems.append(f"{where}: imports {first!r} by its bare name; write dare_bench.{first}")
            target_room = rest.split(".")[0] if first == "dare_bench" else None
            if target_room in EDGES and target_room != room and target_room not in EDGES[room]:
                allowed = ", ".join(sorted(EDGES[room])) or "no other room"
                problems.append(f"{where}: {room} imports {target_room}; it may import {allowed}")
            if first in CARRY_TORCH and not item.types_only and not within(name, MAY_NAME_TORCH):
                problems.append(f"{where}: imports {first}; allowed only in {', '.join(MAY_NAME_TORCH)}")
    for name in known:
        if within(name, TORCH_FREE) and not within(name, MAY_LOAD_TORCH):
            chain = chain_to_torch(name, found)
            if chain:
                problems.append(f"{known[name].relative_to(root)}: loads torch when imported: {' -> '.join(chain)}")
    return problems


def chain_to_torch(start: str, found: dict[str, list[Import]]) -> list[str] | None:
    """The chain of load-time imports that ends in a package carrying torch, or None."""
    came_from: dict[str, str | None] = {start: None}
    queue = [start]
    while queue:
        name = queue.pop(0)
        for item in found[name]:
            if not item.at_load:
                continue
            first, _, rest = item.target.partition(".")
            if first in CARRY_TORCH:
                chain, step = [first], name
                while step is not None:
                    chain.insert(0, step)
                    step = came_from[step]
                return chain
            # Importing a.b.c runs a and a.b first.
            parts = rest.split(".") if first == "dare_bench" else []
            for size in range(1, len(parts) + 1):
                target = ".".join(parts[:size])
                if target in found and target not in came_from:
                    came_from[target] = name
                    queue.append(target)
    return None


def test_the_house_keeps_its_layers():
    assert violations(ROOT) == []


def test_every_room_is_parsed():
    assert {name.split(".")[0] for name in modules(ROOT)} == set(EDGES)


def test_torch_stays_out_of_a_real_process():
    names = [
        f"dare_bench.{name}"
        for name in modules(ROOT)
        # env.py and the versions run only inside Alembic
        if within(name, TORCH_FREE) and not within(name, (*MAY_LOAD_TORCH, "results.migrations"))
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name + ' loads torch'\n"
        # Registries scan their folder at the first call, which no static check sees.
        "from dare_bench.dare.algorithms.registry import algorithms\n"
        "from dare_bench.dare.families.registry import families, models\n"
        "assert algorithms() and families() and models()\n"
        "assert 'torch' not in sys.modules, 'an algorithm or family file loads torch'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, check=False)
    assert done.returncode == 0, done.stderr


PLANTED = [
    ("dare/bad.py", "from dare_bench.suites import registry", "dare imports suites; it may import kernels"),
    ("dare/bad.py", "def f():\n    import dare_bench.results.store", "dare imports results; it may import kernels"),
    ("kernels/bad.py", "import dare_bench.dare.lazy", "kernels imports dare; it may import no other room"),
    (
        "results/bad.py",
        "from dare_bench import leaderboard",
        "results imports leaderboard; it may import no",
    ),
    ("leaderboard/bad.py", "from ..suites import data", "leaderboard imports suites; it may import results"),
    ("suites/a/bad.py", "from ...harness import grid", "suites imports harness; it may import no other room"),
    ("dare/bad.py", "x = lazy_import('dare_bench.harness.cli')", "dare imports harness; it may import kernels"),
    ("dare/bad.py", "from kernels import commit", "imports 'kernels' by its bare name; write dare_bench.kernels"),
    ("suites/bad.py", "def f():\n    import torch.nn", "imports torch; allowed only in"),
    ("harness/commands/bad.py", "import transformers", "imports transformers; allowed only in"),
    ("harness/bad.py", "import importlib\nt = importlib.import_module('torch')", "imports torch; allowed only in"),
    (
        "results/bad.py",
        "try:\n    import torch\nexcept ImportError:\n    x = 1",
        "imports torch; allowed only in",
    ),
    (
        "harness/bad.py",
        "from dare_bench.dare.heavy import x",
        "loads torch when imported: harness.bad -> dare.heavy -> torch",
    ),
    (
        "dare/lazy.py",
        "class A:\n    from . import heavy",
        "when imported: dare.lazy -> dare.heavy -> torch",
    ),
]


@pytest.mark.parametrize(("path", "source", "message"), PLANTED)
def test_a_planted_violation_is_found(tmp_path, path, source, message):
    plant(tmp_path, "dare/heavy.py", "import torch\nx = 1\n")
    plant(tmp_path, path, source)
    problems = violations(tmp_path)
    assert any(problem.startswith(path) and message in problem for problem in problems), problems


ALLOWED = [
    ("harness/good.py", "from dare_bench.suites import x\nfrom dare_bench.results import y"),
    ("harness/good.py", "def f():\n    from dare_bench.dare.heavy import x\n    return x"),
    ("harness/jobs/good.py", "import torch\nimport transformers"),
    ("dare/lazy.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
    ("suites/good.py", "import typing\nif typing.TYPE_CHECKING:\n    from torch import Tensor"),
    ("dare/algorithms/registry.py", "from dare_bench.dare.lazy import lazy_import\ntorch = lazy_import('torch')"),
    ("leaderboard/good.py", "from dare_bench.results.queries import cells\nimport dataresults"),
]


@pytest.mark.parametrize(("path", "source"), ALLOWED)
def test_an_allowed_import_passes(tmp_path, path, source):
    plant(tmp_path, "dare/heavy.py", "import torch\nx = 1\n")
    plant(tmp_path, path, source)
    assert violations(tmp_path) == []


def plant(root: Path, path: str, source: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source + "\n", encoding="utf-8")
