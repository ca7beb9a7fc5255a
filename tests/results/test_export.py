"""Exports: the same bytes for the same contents, whole files only, nothing lost that a leaderboard needs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dare_bench.results import export as exports
from dare_bench.results.store import Store, StoreError


@pytest.fixture
def filled(store: Store, make: SimpleNamespace, fill: Any) -> Store:
    fill(store, "1", [1.0, 0.0], environment=store.environment({"gpu": None}))
    fill(store, "2", [1.0, 1.0])
    row = store.begin_evaluation("e3", **make.evaluation(n_expected=5))
    store.add_samples(row, [(make.sample("q0"), None)], 1.0)
    store.finish_evaluation(row, "failed", error="out of memory, batch 2")
    cells = [make.cell("b", "1"), make.cell("a", "2"), make.cell("c", "3"), make.cell("twin", "1", seed=1)]
    run = store.begin_suite("mini", "suite: mini", {"suite": "mini"}, "dare-bench run", None, cells)
    store.finish_suite(run, "failed")
    return store


@pytest.mark.parametrize("form", ["json", "csv", "jsonl"])
def test_the_same_database_gives_the_same_bytes(filled: Store, tmp_path: Path, form: str) -> None:
    first = exports.export(filled, tmp_path / "one" / f"x.{form}").read_bytes()
    second = exports.export(filled, tmp_path / "two", form=form).read_bytes()
    assert first == second and first.endswith(b"\n")
    assert [path.name for path in (tmp_path / "one").iterdir()] == [f"x.{form}"]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key not in ("started_at", "finished_at")}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def test_the_order_of_writing_leaves_no_trace(tmp_path: Path, make: SimpleNamespace, fill: Any) -> None:
    bundles = []
    for keys in (["1", "2"], ["2", "1"]):
        with Store.open(f"sqlite:///{tmp_path / ''.join(keys)}.db") as store:
            for key in keys:
                fill(store, key, [1.0, 0.0])
            store.begin_suite("mini", "", {}, "", None, [make.cell("a", "1"), make.cell("b", "2")])
            bundles.append(without_times(exports.bundle(store)))
    assert bundles[0] == bundles[1]


def test_the_bundle_holds_what_a_leaderboard_needs(filled: Store, tmp_path: Path) -> None:
    data = json.loads(exports.export(filled, tmp_path / "x.json", "mini").read_text(encoding="utf-8"))
    assert data["format"] == exports.BUNDLE_FORMAT
    assert [(cell["name"], cell["status"]) for cell in data["cells"]] == [
        ("b", "done"),
        ("a", "done"),
        ("c", "failed"),
        ("twin", "done"),
    ]
    assert data["suites"][0]["resolved"] == {"suite": "mini"} and data["suites"][0]["n_cells"] == 4
    assert set(data["evaluations"]) == {"e1", "e2", "e3"}
    one = data["evaluations"]["e1"]
    # The data set's id must survive although primary keys are left out.
    assert one["data"]["id"] == one["hard_fields"]["dataset"]["id"] == "mini_gsm" and "id" not in one
    assert one["costs"]["nfe"] == 3 and one["environment"] == {"gpu": None}
    assert data["scorings"]["s1"]["score"] == 0.5
    assert data["trainings"]["t1"]["points"][1] == {"step": 2, "metrics": {"loss": 1}, "timing": {"step_s": 0.1}}


def test_the_csv_has_no_accuracy_for_a_cell_that_is_not_done(filled: Store, tmp_path: Path) -> None:
    path = exports.export(filled, tmp_path / "x.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert (rows["b"]["score"], rows["b"]["metric_value"], rows["b"]["nfe"], rows["b"]["n"]) == ("0.5", "1.0", "3", "2")
    assert (rows["c"]["status"], rows["c"]["score"], rows["c"]["n"], rows["c"]["n_expected"]) == (
        "failed",
        "",
        "1",
        "5",
    )
    assert rows["c"]["error"] == "out of memory, batch 2"


def test_the_lines_hold_every_sample_once(filled: Store, tmp_path: Path) -> None:
    path = exports.export(filled, tmp_path / "x.jsonl", trajectories=True)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(one["evaluation"], one["sample_id"]) for one in lines] == [
        ("e1", "q0"),
        ("e1", "q1"),
        ("e2", "q0"),
        ("e2", "q1"),
        ("e3", "q0"),
    ]
    assert lines[0]["trajectory"]["pieces"] == ["##", "é"] and lines[0]["score"]["value"] == 1
    assert lines[4]["score"] is None and lines[4]["trajectory"] is None
    assert "trajectory" not in json.loads(next(exports.sample_lines(filled)))


def test_a_broken_export_leaves_the_old_file(filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("old")

    def lines(*arguments: Any, **options: Any) -> Any:
        yield "new"
        raise RuntimeError("power cut")

    monkeypatch.setattr(exports, "sample_lines", lines)
    with pytest.raises(RuntimeError, match="power cut"):
        exports.export(filled, path)
    assert path.read_text() == "old" and [one.name for one in tmp_path.iterdir() if one.is_file()] == ["x.jsonl"]


def test_what_cannot_be_exported_is_said(filled: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no export form 'xlsx' \(of x.xlsx\); allowed: json, csv, jsonl"):
        exports.export(filled, tmp_path / "x.xlsx")
    with pytest.raises(StoreError, match="suite 'math' is not in this database"):
        exports.export(filled, tmp_path / "x.json", "math")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot write .*x\.json: (Not a directory|File exists)"):
        exports.export(filled, tmp_path / "file" / "x.json")
    assert not (tmp_path / "x.json").exists()
