"""Fixtures of the harness tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from dare_bench.harness import cli

#: A manifest of shipped names that is valid; tests change one thing.
GOOD = """\
suite: t
models: [tiny-sdar]
algorithms: [base, {name: sft, lr: 5e-4}]
benchmarks: [mini_gsm]
decoders:
  - {name: one}
  - {name: fast, selector: {threshold: 0.9}}
seeds: [0, 1]
train:
  data: {mini_gsm: train}
  steps: 4
  batch_size: 2
"""


@dataclass(frozen=True)
class Answer:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], in_tmp: Path) -> Callable[..., Answer]:
    """Run the command line in this process, in an empty folder."""

    def call(*arguments: str) -> Answer:
        capsys.readouterr()
        code = cli.run(list(arguments))
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return call


@pytest.fixture
def good() -> str:
    """Text of a valid manifest."""
    return GOOD
