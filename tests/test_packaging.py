"""The package map of pyproject.toml names every folder and ships every data file."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("kernels", "dare", "suites", "results", "leaderboard", "harness")
IGNORED = ("__pycache__", "*.pyc", "*.egg-info", ".*")


def setuptools_table(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]


def folder_of(package: str) -> str:
    return package.removeprefix("dare_bench.").replace(".", "/")


def unlisted_packages(root: Path) -> list[str]:
    """Folders with Python files that the wheel would miss (an editable install hides the mistake)."""
    listed = set(setuptools_table(root)["packages"])
    folders = {path.parent.relative_to(root) for room in ROOMS for path in (root / room).rglob("*.py")}
    return sorted({"dare_bench." + ".".join(folder.parts) for folder in folders} - listed)


def data_files(root: Path) -> set[str]:
    """Every file of the rooms that is neither Python nor a note for the reader of the folder."""
    return {
        str(path.relative_to(root))
        for room in ROOMS
        for path in (root / room).rglob("*")
        if path.is_file()
        and path.suffix not in {".py", ".pyc", ".md"}
        and not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(root).parts)
    }


def shipped_data(root: Path) -> dict[str, set[str]]:
    """``package: glob`` -> files it matches."""
    return {
        f"{package}: {pattern}": {
            str(path.relative_to(root)) for path in (root / folder_of(package)).glob(pattern) if path.is_file()
        }
        for package, patterns in setuptools_table(root)["package-data"].items()
        for pattern in patterns
    }


def copy_house(target: Path) -> Path:
    """The files that make a wheel, without build leftovers and without the work tree's git."""
    for room in ROOMS:
        shutil.copytree(ROOT / room, target / room, ignore=shutil.ignore_patterns(*IGNORED))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    return target


def test_every_folder_with_python_files_is_listed():
    assert unlisted_packages(ROOT) == []


def test_every_listed_package_exists_and_rooms_are_mapped():
    table = setuptools_table(ROOT)
    assert [name for name in table["packages"] if not (ROOT / folder_of(name)).is_dir()] == []
    assert table["package-dir"] == {f"dare_bench.{room}": room for room in ROOMS}


def test_an_unlisted_folder_is_found(tmp_path):
    house = copy_house(tmp_path)
    assert unlisted_packages(house) == []
    (house / "suites" / "forgotten").mkdir()
    (house / "suites" / "forgotten" / "x.py").write_text("")
    assert unlisted_packages(house) == ["dare_bench.suites.forgotten"]


def test_every_data_glob_matches_a_file():
    assert [glob for glob, files in shipped_data(ROOT).items() if not files] == []


def test_every_data_file_is_matched_by_a_glob(tmp_path):
    shipped = set().union(*shipped_data(ROOT).values())
    assert sorted(data_files(ROOT) - shipped) == []
    house = copy_house(tmp_path)
    (house / "suites" / "scoring" / "forgotten.json").write_text("{}")
    assert data_files(house) - set().union(*shipped_data(house).values()) == {"suites/scoring/forgotten.json"}


def inits(root: Path) -> dict[str, bool]:
    """Package -> whether it has an ``__init__.py``."""
    return {name: (root / folder_of(name) / "__init__.py").exists() for name in setuptools_table(root)["packages"]}


def test_kernels_has_no_init_and_every_other_package_has_one():
    assert list((ROOT / "kernels").rglob("__init__.py")) == []
    assert [name for name, has in inits(ROOT).items() if has == name.startswith("dare_bench.kernels")] == []
    assert not (ROOT / "dare_bench").exists()
    assert not (ROOT / "__init__.py").exists()
    assert not (ROOT / "conftest.py").exists()
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def kernels_seen_from(cwd: Path, other: Path) -> str:
    """File of the module that ``import kernels`` finds with `cwd` before `other` on sys.path."""
    package = other / "kernels"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("class CUDAProperties: ...\n")
    done = subprocess.run(
        [sys.executable, "-c", "import kernels; print(kernels.__file__)"],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(other)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_the_third_party_kernels_wins_over_our_folder(tmp_path):
    assert kernels_seen_from(ROOT, tmp_path) == str(tmp_path / "kernels" / "__init__.py")


def test_an_init_in_kernels_would_hide_the_third_party_package(tmp_path):
    house = tmp_path / "house"
    (house / "kernels").mkdir(parents=True)
    (house / "kernels" / "__init__.py").write_text("")
    assert kernels_seen_from(house, tmp_path / "site") == str(house / "kernels" / "__init__.py")


def test_our_kernels_are_found_under_our_name():
    spec = importlib.util.find_spec("dare_bench.kernels.commit")
    assert spec is not None
    assert Path(spec.origin).name == "commit.py"


def test_constraints_pin_every_dependency_inside_its_range():
    pins = {}
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if "==" in line:
            name, _, pinned = line.partition("#")[0].strip().partition("==")
            pins[name.lower().replace("_", "-")] = Version(pinned)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for text in project["dependencies"] + project["optional-dependencies"]["test"]:
        requirement = Requirement(text)
        pinned = pins.get(requirement.name.lower().replace("_", "-"))
        assert pinned is not None, f"constraints.txt has no line for {requirement.name}"
        assert pinned in requirement.specifier, f"constraints.txt pins {pinned}, pyproject.toml says {requirement}"


def can_build() -> bool:
    try:
        return Version(version("setuptools")) >= Version("77")
    except PackageNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not can_build(), reason="building a wheel offline needs setuptools>=77 in this environment")
def test_the_wheel_holds_every_module_and_every_data_file(tmp_path):
    house = tmp_path / "house"
    house.mkdir()
    copy_house(house)
    has_build = importlib.util.find_spec("build") is not None
    if has_build:
        command = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(house)]
    else:
        command = ["-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(tmp_path), str(house)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("dare_bench-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"dare_bench/{path.relative_to(ROOT)}" for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    wanted |= {f"dare_bench/{name}" for name in data_files(ROOT)}
    assert sorted(wanted - names) == []
    # Each kind of data that a fresh install cannot do without.
    for folder, suffix in (
        ("leaderboard/templates", ".j2"),
        ("leaderboard/static", ".js"),
        ("suites", ".yaml"),
        ("suites/mini", ".jsonl"),
        ("dare/tiny", ".safetensors"),
        ("dare/tiny", "config.json"),
    ):
        found = [name for name in names if name.startswith(f"dare_bench/{folder}/") and name.endswith(suffix)]
        assert found, f"the wheel has no *{suffix} under {folder}"
    tops = {name.split("/")[0] for name in names}
    assert tops == {"dare_bench", next(top for top in tops if top.endswith(".dist-info"))}
    (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
    assert "dare-bench = dare_bench.harness.cli:main" in zipfile.ZipFile(wheel).read(entry_points).decode()
