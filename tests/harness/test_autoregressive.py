"""An autoregressive model beside a diffusion model in one suite: recipes, refusals, and a run from end to end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dare_bench.dare.algorithms.sft import SFTConfig
from dare_bench.dare.algorithms.sft_autoregressive import SFTAutoregressiveConfig
from dare_bench.harness.prepare import Options, Prepared, prepare
from dare_bench.harness.settings import field_types
from dare_bench.results.queries import leaderboard_cells, samples, training_points
from dare_bench.results.store import Store

SUITE = """\
suite: both
models: [tiny-sdar, {name: ar, path: ckpt-ar}]
algorithms: [base, {name: sft, lr: 1e-3}]
benchmarks: [{name: mini_gsm, limit: 4}]
decoders: [{name: default, gen_length: 16}]
seeds: [0]
train: {data: {mini_gsm: train}, steps: 2, batch_size: 2}
"""


def make(folder: Path) -> None:
    maker = Path(__file__).with_name("tiny_checkpoint.py")
    subprocess.run([sys.executable, str(maker), "autoregressive", str(folder)], check=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ar") / "ckpt-ar"
    make(folder)
    return folder


@pytest.fixture
def plan(checkpoint: Path, tmp_path: Path) -> Callable[[str], Prepared]:
    def go(text: str) -> Prepared:
        path = tmp_path / "suite.yaml"
        path.write_text(text.replace("ckpt-ar", str(checkpoint)), encoding="utf-8")
        options = Options(str(path), db=f"sqlite:///{tmp_path}/x.db", runs=tmp_path / "runs", device="cpu")
        return prepare(options, is_offline=True)

    return go


def test_one_item_trains_each_model_by_the_entry_of_its_family(plan: Callable[[str], Prepared]) -> None:
    prepared = plan(SUITE)
    assert [cell.name for cell in prepared.cells] == [
        "tiny-sdar/base/mini_gsm/default/0",
        "tiny-sdar/sft/mini_gsm/default/0",
        "ar/base/mini_gsm/default/0",
        "ar/sft/mini_gsm/default/0",
    ]
    jobs = {job.spec["model"]["name"]: job.spec for job in prepared.work.of_kind("train")}
    assert set(jobs["tiny-sdar"]["settings"]) == set(field_types(SFTConfig))
    assert set(jobs["ar"]["settings"]) == set(field_types(SFTAutoregressiveConfig))
    assert {job["label"] for job in jobs.values()} == {"sft"}
    assert {job["train"]["lr"] for job in jobs.values()} == {1e-3}
    assert all(need.total > 0 for need in prepared.memory.values() if need is not None)


def test_dpo_and_grpo_resolve(plan: Callable[[str], Prepared]) -> None:
    text = SUITE.replace(
        "{name: sft, lr: 1e-3}", "{name: dpo, beta: 0.2}, {name: grpo, group_size: 2, as: g}, {name: d1, as: d}"
    )
    text += "exclude:\n  - {model: tiny-sdar, algorithm: [dpo, g]}\n  - {model: ar, algorithm: d}\n"
    text = text.replace("batch_size: 2}", "batch_size: 2, decoder: {steps_per_block: 2, gen_length: 24}}")
    prepared = plan(text)
    jobs = {job.spec["label"]: job.spec for job in prepared.work.of_kind("train")}
    assert {label: job["model"]["name"] for label, job in jobs.items()} == {"dpo": "ar", "g": "ar", "d": "tiny-sdar"}
    assert jobs["dpo"]["settings"]["beta"] == 0.2 and jobs["dpo"]["data_identity"][0]["pairs"] == 1
    assert jobs["dpo"]["rollout"] is None and "pairs" not in jobs["g"]["data_identity"][0]
    assert jobs["g"]["rollout"]["gen_length"] == 24 and jobs["d"]["rollout"]["steps_per_block"] == 2
    assert jobs["g"]["rollout"].get("steps_per_block") is None  # a field of diffusion decoders only


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("lr: 1e-3", "noise_low: 0.1", ["sft has this option for ", "sdar", ", not for autoregressive", "as: LABEL"]),
        ("lr: 1e-3", "loss_type: dft", ["sft has this option for autoregressive, not for "]),
        ("lr: 1e-3", "preset: bd3lm", ["unknown preset of sft for autoregressive", "dft, paper"]),
        ("lr: 1e-3", "optimizer: muon", ["cannot be honoured (sft)", "adamw for the family autoregressive"]),
        ("steps: 2,", "steps: 2, pad_blocks: 1,", ["train.pad_blocks", "0 for the family autoregressive"]),
        ("batch_size: 2}", "batch_size: 4, micro_batch_size: 3}", ["a divisor of the 4 rows"]),
        ("name: sft, lr: 1e-3", "name: grpo", ["grpo does not support the family sdar of the model tiny-sdar"]),
        (
            "name: sft, lr: 1e-3}]\nbenchmarks",
            "name: dpo}]\nexclude: [{model: tiny-sdar, algorithm: dpo}]\nbenchmarks",
            ["dpo trains on chosen/rejected pairs, and mini_choice has none", "train.data of mini_gsm"],
        ),
    ],
)
def test_refusals(
    plan: Callable[[str], Prepared], checkpoint: Path, invoke: Any, in_tmp: Path, old: str, new: str, said: list[str]
) -> None:
    text = SUITE.replace(old, new)
    assert text != SUITE
    if "dpo" in new:
        text = text.replace("data: {mini_gsm: train}", "data: {mini_gsm: train, mini_choice: train}")
    Path("bad.yaml").write_text(text.replace("ckpt-ar", str(checkpoint)), encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == 2, answer.out
    for part in said:
        assert part in answer.err
    assert "Traceback" not in answer.err


def test_entries_of_their_own_for_each_family(plan: Callable[[str], Prepared]) -> None:
    text = SUITE.replace("{name: sft, lr: 1e-3}", "{name: sft, noise_low: 0.1}, {name: sft, as: dft, loss_type: dft}")
    text += "exclude:\n  - {model: ar, algorithm: sft}\n  - {model: tiny-sdar, algorithm: dft}\n"
    jobs = {job.spec["label"]: job.spec for job in plan(text).work.of_kind("train")}
    assert jobs["sft"]["settings"]["noise_low"] == 0.1 and jobs["dft"]["settings"] == {"loss_type": "dft"}


def test_the_list_shows_both_entries(invoke: Any) -> None:
    entries, matrix = invoke("list", "algorithms").out.split("\n\n")
    lines = [line for line in entries.splitlines() if line.startswith("sft")]
    assert len(lines) == 2 and any("autoregressive" in line for line in lines)
    assert "autoregressive" in matrix.splitlines()[0]


@pytest.mark.slow
def test_a_suite_of_both_runs_from_end_to_end(tmp_path: Path) -> None:
    make(tmp_path / "ckpt-ar")
    text = SUITE.replace(
        "{name: sft, lr: 1e-3}",
        "{name: sft, lr: 1e-3}, dpo, {name: grpo, group_size: 2}, {name: sft, as: l, peft: lora}",
    )
    text += "exclude: [{model: tiny-sdar, algorithm: [dpo, grpo, l]}]\n"
    (tmp_path / "both.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "dare_bench.harness.cli"]
    run = subprocess.run(
        [*command, "run", "both.yaml", "--device", "cpu"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr + run.stdout
    with Store.open(f"sqlite:///{tmp_path}/runs/dare-bench.db", create=False) as store:
        cells = {f"{cell.model}/{cell.label}": cell for cell in leaderboard_cells(store, "both")}
        assert sorted(cells) == ["ar/base", "ar/dpo", "ar/grpo", "ar/l", "ar/sft", "tiny-sdar/base", "tiny-sdar/sft"]
        assert {cell.status for cell in cells.values()} == {"done"}
        assert len({cell.evaluation.hard_key for cell in cells.values() if cell.evaluation}) == 1  # one table
        for label in ("sft", "dpo", "grpo", "l"):
            training = cells[f"ar/{label}"].training
            assert training is not None
            assert [point.step for point in training_points(store, training.fingerprint)] == [1, 2]
        found = samples(store, cells["ar/sft"].evaluation_fingerprint)
        assert len(found) == 4 and all(sample.score and sample.trajectory for sample in found)
        assert all(sample.costs["nfe"] == sample.costs["tokens_committed"] > 0 for sample in found)
    publish = subprocess.run([*command, "publish"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert publish.returncode == 0, publish.stderr
    pages = "".join(page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html"))
    assert "tiny-sdar" in pages and ">ar<" in pages
    leftovers = [path.name for path in tmp_path.iterdir() if path.name.startswith("trainer_output")]
    assert leftovers == []
