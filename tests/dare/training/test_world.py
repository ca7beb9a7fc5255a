"""Several processes that train together: their result is that of one, replicated or sharded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.loop import _check_world
from dare_bench.dare.training.world import World
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("two_processes.py")
CASES = ("sft", "d1", "d1-lora")


@given(parts=st.integers(0, 20), size=st.integers(1, 5), sharded=st.booleans())
def test_every_part_counts_once_and_sharded_processes_make_equally_many(parts, size, sharded):
    shares = [World(rank, size, sharded).share(list(range(parts))) for rank in range(size)]
    assert sorted(part for share in shares for part, counts in share if counts) == list(range(parts))
    if sharded:
        assert len({len(share) for share in shares}) == 1
    else:
        assert all(counts for share in shares for _, counts in share)


def test_muon_is_refused_with_sharded_weights():
    with pytest.raises(ValueError, match=r"muon.*adamw"):
        _check_world(World(0, 2, True), TrainConfig(optimizer="muon"))
    _check_world(World(0, 2, False), TrainConfig(optimizer="muon"))


def started(out: Path, *options: str, processes: int = 1) -> None:
    many = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    command = [sys.executable, *many, str(SCRIPT), str(out), *options]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    started(out)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["replicated", "sharded"])
def test_two_processes_equal_one(alone, tmp_path, mode):
    """Losses, metrics, budgets and weights, each within 1e-6; supervised and with rollouts, full weights and adapters."""
    started(tmp_path, mode, processes=2)
    for case in CASES:
        one, two = (json.loads((folder / case / "points.json").read_text("utf-8")) for folder in (alone, tmp_path))
        assert one["totals"] == two["totals"]
        assert list(one["points"]) == list(two["points"]) == ["1", "2", "3", "4"]
        for step, metrics in one["points"].items():
            assert two["points"][step] == pytest.approx(metrics, abs=1e-6)
        files = sorted(path.name for path in (alone / case / "final").glob("*.safetensors"))
        assert files
        for name in files:
            first, second = (load_file(folder / case / "final" / name) for folder in (alone, tmp_path))
            assert set(first) == set(second)
            for key, tensor in first.items():
                torch.testing.assert_close(second[key], tensor, atol=1e-6, rtol=0)
