"""The conformance verb: its help, its options, and what it says about a folder it cannot use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dare_bench.harness.commands.conformance import SUBJECTS

FILES = ("config.json", "model.safetensors", "inputs.safetensors", "expected.safetensors", "meta.json")
PROBE = """
import sys
from dare_bench.harness import cli
code = cli.run(sys.argv[1:])
assert "torch" not in sys.modules, "torch was loaded"
sys.exit(code)
"""


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--help",), 0),
        (("families", "--help"), 0),
        (("families", "nowhere"), 2),
        (("decoding", "--help"), 0),
        (("decoding", "nowhere"), 2),
        (("algorithms", "--help"), 0),
        (("algorithms", "nowhere"), 2),
    ],
    ids=["group", "families", "families folder", "decoding", "decoding folder", "algorithms", "algorithms folder"],
)
def test_torch_is_not_loaded_for_help_and_for_a_wrong_folder(
    arguments: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    probe = [sys.executable, "-c", PROBE, "conformance", *arguments]
    done = subprocess.run(probe, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, "torch was loaded" in done.stderr) == (code, False)


def test_help_says_what_is_compared_and_how_it_ends(invoke: Callable[..., Any]) -> None:
    group = invoke("conformance", "--help")
    assert group.code == 0
    assert all(f"  {subject} " in group.out for subject in SUBJECTS)
    said = invoke("conformance", "families", "--help")
    assert said.code == 0
    words = " ".join(said.out.split())
    for part in (*FILES, "--tolerance", "[default: (1e-4)", "--dtype", "[default: float32]", "--device", "Exit code 0"):
        assert part in words
    assert "conformance" in invoke("--help").out


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--tolerance", "nan", "nan is not a number to compare with; give a finite one, for example 1e-4"),
        ("--tolerance", "inf", "inf is not a number to compare with; give a finite one, for example 1e-4"),
        ("--tolerance", "-1e-4", "-0.0001 is not in the range x>=0"),
        ("--tolerance", "small", "'small' is not a valid float"),
        ("--dtype", "int8", "'int8' is not one of 'float32', 'float64', 'bfloat16', 'float16'"),
        ("--device", "tpu", "--device tpu: no device 'tpu'. Allowed: auto, cpu, cuda, cuda:N."),
    ],
)
def test_a_wrong_option_is_a_user_error(option: str, value: str, message: str, invoke: Callable[..., Any]) -> None:
    touch(Path("recorded/one"), *FILES)
    answer = invoke("conformance", "families", "recorded", option, value)
    assert (answer.code, answer.out) == (2, "")
    assert message in " ".join(answer.err.split()) and "Traceback" not in answer.err


def test_an_unknown_subject_is_a_user_error(invoke: Callable[..., Any]) -> None:
    answer = invoke("conformance", "weather", "recorded")
    assert answer.code == 2
    assert "No such command 'weather'" in answer.err


def test_a_folder_without_sub_folders_says_what_is_expected(invoke: Callable[..., Any]) -> None:
    touch(Path("recorded/.git"), *FILES)  # a hidden folder is none
    answer = invoke("conformance", "families", "recorded")
    assert answer.code == 2
    assert "recorded: no sub-folders; expected one sub-folder per model, each with config.json, model" in answer.err
    assert "give the folder above it" not in answer.err


def test_a_recorded_folder_itself_is_answered_with_the_folder_above(invoke: Callable[..., Any]) -> None:
    touch(Path("recorded/one"), *FILES)
    answer = invoke("conformance", "families", "recorded/one")
    assert answer.code == 2
    assert f"give the folder above it, {Path('recorded').resolve()}" in answer.err


@pytest.mark.parametrize("missing", FILES)
def test_a_missing_file_is_named(missing: str, invoke: Callable[..., Any]) -> None:
    touch(Path("recorded/a"), *FILES)
    touch(Path("recorded/b"), *(name for name in FILES if name != missing))
    answer = invoke("conformance", "families", "recorded")
    assert (answer.code, answer.out) == (2, "")
    assert f"b: missing {missing}; expected one sub-folder per model" in answer.err.replace("\\", "/")


def test_a_file_instead_of_a_folder(invoke: Callable[..., Any]) -> None:
    Path("recorded").touch()
    answer = invoke("conformance", "families", "recorded")
    assert answer.code == 2
    assert "recorded: no such folder; expected one sub-folder per model" in answer.err
