"""The grid and its jobs: product, exclusion, and which cells share work."""

from __future__ import annotations

from pathlib import Path

import pytest
from dare_bench.harness.errors import ManifestError
from dare_bench.harness.grid import expand
from dare_bench.harness.manifest import load_manifest
from dare_bench.harness.prepare import Options, Prepared, prepare
from dare_bench.harness.resolve import resolve


def plan(text: str, folder: Path, **options: object) -> Prepared:
    path = folder / "suite.yaml"
    path.write_text(text, encoding="utf-8")
    settings = {"db": f"sqlite:///{folder}/x.db", "runs": folder / "runs", "device": "cpu", **options}
    return prepare(Options(str(path), **settings), is_offline=True)  # type: ignore[arg-type]


def test_names_are_unique_and_in_order(good: str, tmp_path: Path) -> None:
    names = [cell.name for cell in plan(good, tmp_path).cells]
    assert names[0] == "tiny-sdar/base/mini_gsm/one/0"
    assert names[-1] == "tiny-sdar/sft/mini_gsm/fast/1"
    assert len(set(names)) == len(names) == 8


def test_work_is_shared(good: str, tmp_path: Path) -> None:
    work = plan(good, tmp_path).work
    # Two seeds of sft are two trainings; the untrained model is greedy: both seeds share its two evaluations.
    assert {kind: len(work.of_kind(kind)) for kind in ("train", "generate", "score")} == {
        "train": 2,
        "generate": 2 + 4,
        "score": 2 + 4,
    }
    base = [cell for cell in work.cells if cell.cell.recipe.is_base and cell.cell.decoder.name == "one"]
    assert len(base) == 2 and base[0].evaluation == base[1].evaluation
    assert all(cell.train is None for cell in base)


def test_sampling_separates_the_seeds(good: str, tmp_path: Path) -> None:
    work = plan(good.replace("{name: one}", "{name: one, temperature: 0.7}"), tmp_path).work
    assert len(work.of_kind("generate")) == 2 + 1 + 4


def test_parents_come_first(good: str, tmp_path: Path) -> None:
    seen: set[str] = set()
    for job in plan(good, tmp_path).work.jobs.values():
        assert seen.issuperset(job.parents)
        seen.add(job.fingerprint)


def test_exclude_matches_all_given_keys(good: str, tmp_path: Path) -> None:
    text = good + "exclude:\n  - {algorithm: sft, decoder: one}\n  - {seed: 1, algorithm: base}\n"
    names = [cell.name for cell in plan(text, tmp_path).cells]
    assert names == [
        "tiny-sdar/base/mini_gsm/one/0",
        "tiny-sdar/base/mini_gsm/fast/0",
        "tiny-sdar/sft/mini_gsm/fast/0",
        "tiny-sdar/sft/mini_gsm/fast/1",
    ]


def test_limit_is_the_smaller_one(good: str, tmp_path: Path) -> None:
    text = good.replace("[mini_gsm]", "[{name: mini_gsm, limit: 7}]")
    assert {job.spec["n_rows"] for job in plan(text, tmp_path, limit=5).work.of_kind("generate")} == {5}
    assert {job.spec["n_rows"] for job in plan(text, tmp_path, limit=9).work.of_kind("generate")} == {7}


def test_settings_come_from_entry_before_train_before_preset(good: str, tmp_path: Path) -> None:
    text = good.replace("{name: sft, lr: 5e-4}", "{name: sft, lr: 1}, {name: sft, as: b, batch_size: 9}")
    jobs = {job.spec["label"]: job.spec["train"] for job in plan(text, tmp_path).work.of_kind("train")}
    assert (jobs["sft"]["lr"], jobs["sft"]["batch_size"]) == (1, 2)
    assert jobs["b"]["batch_size"] == 9
    assert jobs["sft"]["steps"] == jobs["b"]["steps"] == 4


def test_numbers_follow_yaml_1_2(good: str, tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(good.replace("lr: 5e-4", "lr: 5e-4").replace("suite: t", "suite: no"), encoding="utf-8")
    document, manifest = load_manifest(path, "suite.yaml")
    suite = resolve(document, manifest)
    assert suite.name == "no"  # YAML 1.1 would read false
    assert suite.recipes[1].train.lr == pytest.approx(5e-4)  # and the text "5e-4"
    assert len(expand(suite, document)) == 8


def test_curriculum(good: str, tmp_path: Path) -> None:
    text = good.replace(
        "data: {mini_gsm: train}", "data: {mini_gsm: [train, validation], mini_choice: train}\n  phases:"
    )
    text = text.replace(
        "  phases:", "  phases:\n    - {until: 0.5, mix: {validation: 1}}\n    - {until: 1, mix: {mini_gsm/train: 1}}"
    )
    job = plan(text, tmp_path).work.of_kind("train")[0]
    assert job.spec["data"] == [["mini_gsm", "train"], ["mini_gsm", "validation"], ["mini_choice", "train"]]
    assert job.spec["phases"] == [[0.5, {"validation": 1.0}], [1.0, {"mini_gsm/train": 1.0}]]


def test_set_may_take_out_what_an_exclude_rule_names(good: str, tmp_path: Path) -> None:
    """`--set` narrows a suite for one run; rules of the file about what is gone have nothing left to do."""
    text = good + "exclude:\n  - {benchmark: mini_gsm, seed: 1}\n"
    names = [cell.name for cell in plan(text, tmp_path, sets=("benchmarks=[mini_choice]",)).cells]
    assert names
    assert all("/mini_choice/" in name for name in names)
    with pytest.raises(ManifestError, match="no such benchmark"):
        plan(good + "exclude:\n  - {benchmark: mini_choice}\n", tmp_path)
