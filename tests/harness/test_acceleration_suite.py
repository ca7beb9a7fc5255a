"""The suite of decoders, end to end: one checkpoint, six ways to decode it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from dare_bench.results.queries import leaderboard_cells
from dare_bench.results.store import Store


def dare_bench(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "dare_bench.harness.cli", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_six_decoders_of_one_checkpoint_show_accuracy_beside_forwards(tmp_path: Path) -> None:
    shown = dare_bench(tmp_path, "run", "acceleration", "--device", "cpu", "--limit", "16")
    assert "NFE" in shown and "TPF" in shown
    with Store.open(f"sqlite:///{tmp_path}/runs/dare-bench.db", create=False) as store:
        cells = {cell.decoder: cell for cell in leaderboard_cells(store, "acceleration")}
    assert set(cells) == {"one", "threshold", "factor", "prefix", "dual", "hierarchy"}
    assert {cell.status for cell in cells.values()} == {"done"}
    costs = {name: cell.evaluation.costs for name, cell in cells.items() if cell.evaluation is not None}
    assert all(costs[name].nfe < costs["one"].nfe / 2 for name in costs if name != "one")
    dare_bench(tmp_path, "publish", "--out", "site")
    page = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    assert all(name in page for name in cells) and "NFE" in page and "TPF" in page
