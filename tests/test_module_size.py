"""Modules stay short and are not named like a package of someone else."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("kernels", "dare", "suites", "results", "leaderboard", "harness")
TARGET, WALL = 300, 400
# Generated or vendored modules, each with its reason.
EXEMPT: dict[str, str] = {}
# Distributions whose import name is not their own name, and engines that are found at run time only.
IMPORT_NAMES = {"pyyaml": "yaml"}
ENGINES = {"flash_attn", "sglang", "lmdeploy", "opencompass", "kernels", "huggingface_hub", "evaluate", "openai"}


class LongModule(UserWarning):
    """A module above the target, below the wall."""


def sources(root: Path) -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((root / room).rglob("*.py"))


def long_modules(root: Path, limit: int) -> dict[str, int]:
    """Modules of more than `limit` lines."""
    lengths = {str(path.relative_to(root)): len(path.read_text("utf-8").splitlines()) for path in sources(root)}
    return {name: lines for name, lines in lengths.items() if lines > limit and name not in EXEMPT}


def third_party_names(pyproject: Path) -> set[str]:
    """Import names of what the project requires, its extras but `dev` included."""
    project = tomllib.loads(pyproject.read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [item for name, items in extras.items() if name != "dev" for item in items]
    names = {re.match(r"[\w.-]+", item)[0].lower().replace("-", "_") for item in wanted}
    return {IMPORT_NAMES.get(name, name) for name in names} | ENGINES


def shadowing(root: Path, names: set[str]) -> list[str]:
    """Modules and folders that would hide a third-party package if their folder came first on sys.path."""
    found = []
    for path in sources(root):
        parts = path.relative_to(root).with_suffix("").parts[1:]
        if any(part in names for part in parts):
            found.append(str(path.relative_to(root)))
    return found


def test_no_module_above_the_wall():
    above = long_modules(ROOT, TARGET)
    for name, lines in sorted(above.items()):
        warnings.warn(f"{name} has {lines} lines, the target is {TARGET}", LongModule, stacklevel=1)
    assert {name: lines for name, lines in above.items() if lines > WALL} == {}


def test_exempt_modules_exist():
    assert [name for name in EXEMPT if not (ROOT / name).is_file()] == []


def test_a_planted_long_module_is_found(tmp_path):
    for name, lines in (("short", TARGET), ("longer", TARGET + 1), ("wall", WALL), ("over", WALL + 1)):
        path = tmp_path / "dare" / "deep" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n" * lines)
    assert long_modules(tmp_path, WALL) == {"dare/deep/over.py": WALL + 1}
    assert set(long_modules(tmp_path, TARGET)) == {"dare/deep/longer.py", "dare/deep/wall.py", "dare/deep/over.py"}


def test_no_module_is_named_like_a_third_party_package():
    assert shadowing(ROOT, third_party_names(ROOT / "pyproject.toml")) == []


@pytest.mark.parametrize(
    "name", ["kernels/triton.py", "kernels/flash_attn.py", "harness/click.py", "dare/peft/x.py", "results/yaml.py"]
)
def test_a_planted_shadow_is_found(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert shadowing(tmp_path, third_party_names(ROOT / "pyproject.toml")) == [name]
