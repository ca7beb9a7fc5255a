"""A suite whose rollouts come from a server: two training jobs, one after the other, each with its own weights."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from dare_bench.dare.training.engine import EngineConfig
from dare_bench.harness.jobs.train import _engine
from dare_bench.results.schema import TrainingRun
from dare_bench.results.store import Store
from sqlalchemy import select

STUB = Path(__file__).resolve().parents[1] / "dare" / "training" / "test_rollout_remote.py"
SUITE = """\
suite: served
models: [tiny-sdar]
algorithms: [{{name: d1, group_size: 2}}]
benchmarks: [{{name: mini_gsm, limit: 2}}]
decoders: [{{name: fast, selector: {{threshold: 0.9}}}}]
seeds: [0, 1]
train:
  data: {{mini_gsm: train}}
  steps: 2
  batch_size: 2
  decoder: {{gen_length: 16}}
  engine: {{kind: sglang, url: "{url}", concurrency: 4}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--jobs", "2"], ["--jobs", "1", "--ranks", "2"]], ids=["two jobs", "two ranks"])
def test_jobs_take_turns_at_the_server(options: list[str], invoke: Any, in_tmp: Path) -> None:
    server = runpy.run_path(str(STUB))["Engine"]()
    try:
        Path("served.yaml").write_text(SUITE.format(url=server.url), encoding="utf-8")
        done = invoke("run", "served.yaml", "--device", "cpu", *options)
    finally:
        server.stop()
    assert done.code == 0, done.err
    assert [path for path, _ in server.log] == (["/update_weights_from_disk"] + ["/generate"] * 4) * 4
    assert [version for version, _ in server.loads()] == ["0", "1", "0", "1"]
    with Store.open("sqlite:///runs/dare-bench.db", create=False) as store, store.read() as session:
        configs = session.scalars(select(TrainingRun.config)).all()
    assert [config["engine"] for config in configs] == [{"kind": "sglang"}] * 2
    assert not list(Path("runs").glob("train/*/engine"))


def test_the_folder_as_the_server_sees_it(tmp_path: Path) -> None:
    given = {"kind": "sglang", "url": "http://h:1", "concurrency": 2, "timeout_s": 5.0, "shared_folder": "/shared/runs/"}
    found = _engine({"engine": given}, tmp_path, tmp_path / "train" / "abc")
    assert found == {"engine": EngineConfig("sglang", "http://h:1", 2, 5.0, "/shared/runs/train/abc/engine")}
    assert _engine({}, tmp_path, tmp_path) == {}
