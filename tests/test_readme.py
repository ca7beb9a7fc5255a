"""The commands in the README run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def console_commands() -> list[str]:
    """Lines `$ ...` of the console blocks, in order."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.S)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def shell_commands() -> list[str]:
    """Lines of the sh blocks, without comments."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.S)
    return [line.partition("#")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


@pytest.mark.slow
def test_console_commands_run_in_order(tmp_path: Path) -> None:
    commands = console_commands()
    assert len(commands) >= 6
    (tmp_path / "suites").symlink_to(ROOT / "suites")
    tool = Path(sys.executable).parent / "dare-bench"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "dare-bench", command
        done = subprocess.run(
            [str(tool), *words[1:]], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert (tmp_path / "site" / "index.html").is_file()
    assert (tmp_path / "results.csv").is_file()


def test_shell_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    verbs = {path.stem for path in (ROOT / "harness" / "commands").glob("*.py")}
    for command in shell_commands():
        words = shlex.split(command)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.M), command
        elif words[0] == "dare-bench":
            assert words[1] in verbs, command
        else:
            assert words[:2] == ["hf", "download"], command


def test_the_manifest_in_the_readme_is_valid(tmp_path: Path) -> None:
    """Only the checkpoint folder of the example is missing."""
    manifest = re.search(r"```yaml\n(.*?)```", README, re.S)
    assert manifest is not None
    path = tmp_path / "math.yaml"
    path.write_text(manifest[1], encoding="utf-8")
    tool = Path(sys.executable).parent / "dare-bench"
    done = subprocess.run([str(tool), "plan", str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "unknown" not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_local_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"
