"""Recorded values of algorithms: what the runner asks of modules, and the files that are kept beside the tests."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dare_bench.dare.conformance import algorithm_runner
from dare_bench.dare.conformance.fixture import Compared, Fixture, read_fixture
from dare_bench.dare.conformance.layout import BadReference, fixture_files
from safetensors.torch import save_file

DATA = Path(__file__).parents[1] / "algorithms" / "data"
KEPT = [stem for stem in fixture_files(DATA) if stem in algorithm_runner.modules()]


@pytest.mark.parametrize("stem", KEPT)
def test_kept_files_agree(stem: str) -> None:
    fixture = read_fixture(stem, fixture_files(DATA)[stem])
    outcomes = algorithm_runner.compare_one(fixture, algorithm_runner.modules()[stem])
    assert outcomes
    assert [(item.case, item.max_diff, item.problem) for item in outcomes if not item.passed] == []


def test_the_supervised_files_are_kept() -> None:
    assert {"block_diffusion_mask", "block_diffusion_sft", "dream_sft", "llada_sft"} <= set(KEPT)


@pytest.mark.parametrize("folder", ["algorithms", "algorithms_b"])
def test_every_module_agrees_with_the_whole_folder(reference: Path, folder: str) -> None:
    known = algorithm_runner.modules()
    compared = 0
    for stem, files in fixture_files(reference / folder).items():
        if stem not in known:
            continue
        outcomes = algorithm_runner.compare_one(read_fixture(stem, files), known[stem])
        assert [(item.subject, item.case, item.problem) for item in outcomes if not item.passed] == []
        compared += len(outcomes)
    if folder == "algorithms":
        assert compared > 80


def outcomes_of(data: dict[str, Any], *found: Compared, **module: Any) -> list[Any]:
    """What the runner says about a file whose module reads `reads` and yields `found`."""

    def cases(fixture: Fixture) -> Any:
        for key in module.get("reads", ()):
            fixture[key]
        yield from found

    return algorithm_runner.compare_one(
        Fixture("one", data), SimpleNamespace(cases=cases, NOT_COMPARED=module.get("excused", {}))
    )


class TestWhatFails:
    def test_a_file_without_a_module(self) -> None:
        (outcome,) = algorithm_runner.compare_one(Fixture("nobody", {"a": [1.0]}), None)
        assert not outcome.passed
        assert "no module compares a file of this name" in str(outcome.problem)

    def test_a_value_that_is_never_read(self) -> None:
        data = {"loss": 0.5, "grad": [0.1], "vocab_size": 7, "source": "somewhere", "tolerance": {"rtol": 1.0}}
        found = outcomes_of(data, Compared("loss", 0.5, 0.5), reads=["loss"])
        assert [(item.case, item.passed) for item in found] == [("loss", True), ("grad", False)]
        excused = outcomes_of(data, Compared("loss", 0.5, 0.5), reads=["loss"], excused={"grad": "why"})
        assert [item.passed for item in excused] == [True]

    def test_a_nested_value_that_is_never_read(self) -> None:
        data = {"cases": [{"loss": 0.5, "grad": [0.1]}]}
        found = outcomes_of(data, Compared("a", 1.0, 1.0), reads=["cases"])
        assert [item.case for item in found if not item.passed] == ["cases.0.loss", "cases.0.grad"]
        assert all(
            item.passed for item in outcomes_of(data, Compared("a", 1, 1), reads=["cases"], excused={"cases": ""})
        )

    def test_a_module_that_compares_nothing_or_stops(self) -> None:
        (nothing,) = outcomes_of({})
        assert "compares nothing" in str(nothing.problem)

        def cases(fixture: Fixture) -> Any:
            yield Compared("first", 1.0, 1.0)
            fixture["missing"]

        found = algorithm_runner.compare_one(Fixture("one", {}), SimpleNamespace(cases=cases))
        assert [item.passed for item in found] == [True, False]
        assert "KeyError" in str(found[1].problem)

    def test_differences(self) -> None:
        def one(expected: Any, found: Any, **options: Any) -> Any:
            return Compared("x", expected, found, **options).outcome("one")

        assert one([1.0, 2.0], torch.tensor([1.0, 2.0 + 3e-5])).passed  # 1.5e-5 of 2
        assert not one([1.0, 2.0], torch.tensor([1.0 + 3e-5, 2.0])).passed
        assert not one(0.5, 0.5 + 1e-6, tolerance=1e-7).passed
        assert one(1, torch.tensor(1.0)).passed
        assert not one([1, 2], torch.tensor([1, 3])).passed
        assert not one([True], torch.tensor([False])).passed
        assert not one(1.0, float("nan")).passed
        assert not one(float("nan"), float("nan")).passed
        assert one(float("-inf"), float("-inf")).passed
        assert not one([], []).passed
        assert "shape (2,)" in str(one([1.0, 2.0], [1.0]).problem)
        assert one("same", "same").passed
        assert not one("same", "other").passed


class TestFolders:
    def test_pairs_of_files_and_tensors(self, tmp_path: Path) -> None:
        (tmp_path / "one.json").write_text(json.dumps({"loss": [1, 2.5]}), encoding="utf-8")
        save_file({"mask": torch.tensor([True]), "a.b": torch.ones(2)}, tmp_path / "one.safetensors")
        (tmp_path / "README.md").write_text("words", encoding="utf-8")
        files = fixture_files(tmp_path)
        assert list(files) == ["one"]
        fixture = read_fixture("one", files["one"])
        assert fixture.unread() == ["loss", "a.b", "mask"]
        assert fixture.tensor("loss").dtype == torch.float64
        assert fixture.tensor("a.b", torch.float32).dtype == torch.float32
        assert fixture.tensor("mask").dtype == torch.bool
        assert fixture.unread() == []
        with pytest.raises(LookupError, match="no recorded value 'other'"):
            fixture.tensor("other")

    @pytest.mark.parametrize(("name", "text"), [("one.json", "{"), ("one.json", "[1]"), ("one.safetensors", "x")])
    def test_a_damaged_file_is_named(self, tmp_path: Path, name: str, text: str) -> None:
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(BadReference, match=rf"{name}: .*copy the file again"):
            algorithm_runner.compare(tmp_path)

    def test_what_is_no_such_folder(self, tmp_path: Path) -> None:
        with pytest.raises(BadReference, match="holds no recorded values"):
            fixture_files(tmp_path)
        (tmp_path / "sub").mkdir()
        with pytest.raises(BadReference, match="Give a folder of these alone"):
            fixture_files(tmp_path)
        with pytest.raises(BadReference, match="no such folder"):
            fixture_files(tmp_path / "nowhere")
