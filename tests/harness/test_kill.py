"""The kill test, shortened; `python tests/harness/kill_test.py` runs it in full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_killed_run_ends_like_an_undisturbed_one() -> None:
    script = Path(__file__).with_name("kill_test.py")
    done = subprocess.run([sys.executable, str(script), "--kills", "4", "--seed", "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("equal")
