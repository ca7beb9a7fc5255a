"""The decoding command: passes on what independent loops recorded, and on nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dare_bench.dare.conformance import decoding_expected as expect
from dare_bench.dare.conformance.decoding import Conformance
from dare_bench.dare.conformance.decoding_cases import Case, read_cases
from dare_bench.dare.conformance.decoding_samplers import map_case
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.families.loading import load, save
from dare_bench.harness import cli

PROMPT = [3, 1, 4, 1, 5, 9]
FULL = {"gen": 8, "block": 4}
#: Folder -> (family, loop, arguments).
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "quota": ("llada", "fast_dllm", {**FULL, "steps": 4, "cache": "nocache"}),
    "quota-dual": ("llada", "fast_dllm", {**FULL, "steps": 8, "cache": "dual"}),
    "threshold": ("llada", "fast_dllm", {**FULL, "steps": 8, "cache": "nocache", "threshold": 0.4}),
    "threshold-prefix": ("llada", "fast_dllm", {**FULL, "steps": 8, "cache": "prefix", "threshold": 0.4}),
    "at-once-dual": ("llada", "fast_dllm", {**FULL, "steps": 8, "cache": "dual", "threshold": 0.01}),
    "factor": ("llada", "fast_dllm", {**FULL, "steps": 8, "cache": "nocache", "factor": 0.8}),
    "factor-fixed": ("llada", "fast_dllm", {**FULL, "steps": 8, "cache": "nocache", "factor": 0.8, "rule": "paper"}),
    "unrolled": ("llada", "unrolled", {**FULL, "threshold": 0.01}),
    "dream-entropy": ("dream", "dream", {"gen": 8, "steps": 8, "alg": "entropy"}),
    "dream-margin": ("dream", "dream", {"gen": 8, "steps": 5, "alg": "topk_margin"}),
    "dream-dual": ("dream", "dream_blocks", {**FULL, "cache": "dual", "threshold": 0.4}),
    "dream-prefix": ("dream", "dream_blocks", {**FULL, "cache": "prefix", "threshold": 0.4}),
    "sdar-static": ("sdar", "sdar", {"gen": 9, "block": 4, "steps": 2, "threshold": None}),
    "sdar-dynamic": ("sdar", "sdar", {"gen": 9, "block": 4, "steps": 4, "threshold": 0.4}),
}


@pytest.fixture(scope="session")
def recorded(tmp_path_factory, tiny, plain, sampler) -> Path:
    """A folder of all runs; one network for each family."""
    root = tmp_path_factory.mktemp("decoding")
    nets = {}
    for name, (family, loop, arguments) in RUNS.items():
        if family not in nets:
            lm = tiny(family, dtype=torch.float32)
            save(lm, root / f"network-{family}")
            nets[family] = (plain.PlainNetwork(lm), lm.mask_token_id)
        net, mask = nets[family]
        write(root, name, getattr(sampler, loop)(net, plain, mask, PROMPT, **arguments), family)
    net, mask = nets["sdar"]
    stop = json.loads((root / "sdar-dynamic" / "case.json").read_text())["output_ids"][0][3]
    arguments = {**RUNS["sdar-dynamic"][2], "gen": 17, "stop_ids": [stop]}
    write(root, "sdar-stop", sampler.sdar(net, plain, mask, PROMPT, **arguments), "sdar")
    return root


def write(root: Path, name: str, case: dict[str, Any], family: str) -> None:
    (root / name).mkdir()
    data = {**case, "case": name, "model": f"../network-{family}"}
    (root / name / "case.json").write_text(json.dumps(data), encoding="utf-8")


@pytest.fixture
def command(capsys) -> Callable[..., tuple[int, str, str]]:
    """Run `conformance decoding`: exit code, output, errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run(["conformance", "decoding", *map(str, arguments), "--device", "cpu"])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    return run


@pytest.fixture
def copy(recorded, tmp_path) -> Callable[..., Path]:
    """A recorded case alone, with some of its data changed; the folder that the command is given."""

    def make(name: str, **changes: Any) -> Path:
        root = tmp_path / "copy"
        shutil.rmtree(root, ignore_errors=True)
        data = json.loads((recorded / name / "case.json").read_text())
        shutil.copytree(recorded / data["model"].removeprefix("../"), root / data["model"].removeprefix("../"))
        (root / name).mkdir()
        changed = {key: value for key, value in (data | changes).items() if value is not None}
        (root / name / "case.json").write_text(json.dumps(changed), encoding="utf-8")
        return root

    return make


def rows(out: str) -> list[list[str]]:
    """Cells of the table."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()[2:-1]]


def failed(out: str) -> list[list[str]]:
    return [row for row in rows(out) if "FAIL" in row]


def data_of(recorded: Path, name: str) -> dict[str, Any]:
    return json.loads((recorded / name / "case.json").read_text())


def test_independent_loops_are_reproduced(command, recorded):
    code, out, _ = command(recorded)
    assert failed(out) == []
    assert code == 0
    assert out.splitlines()[-1] == f"{len(RUNS) + 1} cases, 0 failed, 0 skipped"
    found = {(row[0], row[1].partition(" ")[0]): row for row in rows(out)}
    assert {name for name, _ in found} == {*RUNS, "sdar-stop"}
    published = {name for name, kind in found if kind == "published"}
    assert published == {
        "quota-dual", "threshold-prefix", "at-once-dual", "factor", "unrolled", "dream-dual", "dream-prefix", "sdar-static",
        "sdar-dynamic", "sdar-stop",
    }  # fmt: skip


def test_wasted_forwards_are_not_made_by_the_rule(command, recorded):
    _, out, _ = command(recorded)
    found = {row[0]: row[4] for row in rows(out) if row[1] == "rule"}
    assert found["at-once-dual"] == "2 of 4 equal"  # a refreshing forward for each block
    assert found["unrolled"] == "2 of 4 equal"
    stores = sum(kind == "store" for kind, *_ in data_of(recorded, "sdar-dynamic")["forwards"])
    calls = data_of(recorded, "sdar-dynamic")["nfe"]
    assert stores == 4 and found["sdar-dynamic"] == f"{calls - stores} of {calls} equal"
    assert any("as recorded in factor-fixed" in line for line in out.splitlines() if line.startswith("factor "))


def test_the_reference_passes(command, reference):
    root = reference / "decoding"
    code, out, _ = command(root)
    assert failed(out) == []
    assert code == 0
    cases = read_cases(root)
    assert out.splitlines()[-1] == f"{len(cases)} cases, 0 failed, 0 skipped"
    assert len(cases) == 76
    assert {row[0] for row in rows(out)} == {case.name for case in cases}


def test_expectations_of_the_reference_agree_with_its_own_numbers(reference):
    for case in read_cases(reference / "decoding"):
        map_case(case)
        calls = case.data["nfe"] - len(expect.wasted(case, 0))
        assert calls == case.data.get("nfe_denoise", case.data["nfe"])
        if "first_commit_step" in case.data:
            assert expect.last_writes(case.first_commits[0], case.edits(0)) == case.data["step_map"][0]


def other(value: int) -> int:
    return 7 if value != 7 else 8


@pytest.mark.parametrize("name", ["threshold", "sdar-dynamic", "dream-dual"])
def test_what_differs_is_named(command, copy, recorded, name):
    data = data_of(recorded, name)
    ids = [[*data["output_ids"][0]]]
    ids[0][2] = other(ids[0][2])
    code, out, _ = command(copy(name, output_ids=ids))
    assert code == 1
    assert f"position 2: token {data['output_ids'][0][2]} instead of {ids[0][2]}" in out
    assert out.splitlines()[-1] == "1 cases, 1 failed, 0 skipped"
    probs = [[*data["commit_prob"][0]]]
    probs[0][1] += 2e-4
    code, out, _ = command(copy(name, commit_prob=probs))
    assert code == 1 and "position 1: probability" in out
    probs[0][1] -= 1.5e-4
    assert command(copy(name, commit_prob=probs))[0] == 0


def test_wrong_steps_and_calls_are_named(command, copy, recorded):
    data = data_of(recorded, "quota")
    steps = [[*data["step_map"][0]]]
    one, two = steps[0].index(0), steps[0].index(1)
    steps[0][one], steps[0][two] = 1, 0
    code, out, _ = command(copy("quota", step_map=steps))
    assert code == 1 and "committed by forward" in out
    # A forward more, which committed nothing while the block had masks: no rule wastes it.
    later = [[step + (step > 0) for step in row] for row in data["step_map"]]
    forwards = [*data["forwards"], data["forwards"][0]]
    code, out, _ = command(copy("quota", step_map=later, nfe=data["nfe"] + 1, forwards=forwards))
    assert code == 1 and "committed by forward" in out
    code, out, _ = command(copy("quota", nfe=data["nfe"] + 1, forwards=forwards))
    assert code == 0 and f"{data['nfe']} of {data['nfe'] + 1} equal" in out  # behind the end: wasted


def test_edits_are_compared(command, copy, recorded):
    case = data_of(recorded, "sdar-static")
    code, out, _ = command(copy("sdar-static", edits=[[1, 0, 5, case["output_ids"][0][0]]]))
    assert code == 1 and "only recorded" in out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"source": {"repo": "someone/else", "file": "x.py"}},
            ["unknown sampler 'someone/else x.py'", "ML-GSAI/LLaDA"],
        ),
        ({"settings": {}}, ["settings.cache is missing"]),
        ({"step_map": None}, ["step_map is missing"]),
        ({"nfe": 3}, ["forwards are listed, nfe is 3"]),
        ({"nfe": "3"}, ["nfe is str; expected int"]),
        ({"output_ids": [[1, 2]]}, ["step_map has rows of [8] values"]),
        ({"step_map": [[99] * 8]}, ["step_map names forward 99"]),
        ({"model": "../nowhere"}, ["no network at", "expected config.json and model.safetensors"]),
    ],
)
def test_damaged_cases_are_refused(command, copy, changes, said):
    code, _, err = command(copy("threshold", **changes))
    assert code == 2
    for part in said:
        assert part in err


def test_folders_that_are_not_cases_are_refused(command, recorded, tmp_path):
    code, _, err = command(tmp_path / "nowhere")
    assert code == 2 and "no such folder" in err and "case.json" in err
    code, _, err = command(recorded / "quota")
    assert code == 2 and "give the folder above it" in err
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "case.json").write_text("{")
    code, _, err = command(tmp_path)
    assert code == 2 and "not readable as JSON" in err


def made(steps: list[int], forwards: list[str], block: int = 4, **more: Any) -> Case:
    """A case of one row with a prompt of 4."""
    data = {
        "prompt_ids": [[1, 2, 3, 4]], "gen_length": len(steps), "block_length": block, "step_map": [steps],
        "output_ids": [[9] * len(steps)], "nfe": len(forwards), "forwards": [[kind, 0, 0] for kind in forwards],
        "settings": {}, **more,
    }  # fmt: skip
    return Case(Path("made"), data)


def test_wasted_forwards_by_hand():
    full, block = ["full"], ["block"]
    assert expect.wasted(made([0, 0, 0, 0, 2, 2, 3, 3], full + block + full + block), 0) == {1}
    assert expect.wasted(made([1, 1, 2, 2], ["store", "denoise", "denoise", "store"]), 0) == {0, 3}
    # No commit, but the block was not finished: the rule's own (Dream's first step, a forward that only filled).
    assert expect.wasted(made([1, 1, 2, 2], full * 3), 0) == set()
    assert expect.wasted(made([0, -2, -2, -2], full * 2), 0) == set()
    assert expect.wasted(made([0, -1, 0, 0], full * 2), 0) == set()
    # The recorded text ends inside the block.
    assert expect.wasted(made([0, 0, 0], full * 2, total_length=8), 0) == set()
    assert expect.wasted(made([0, 0, 0, 0], full * 2, total_length=8), 0) == {1}
    # Editing goes on with finished blocks.
    assert expect.wasted(made([0, 0, 0, 0], full * 2, settings={"editing_threshold": 0.5}), 0) == set()


def test_expectations_by_hand():
    case = made([1, 1, 3, 3], ["store", "denoise", "store", "denoise"], overwrites=[[3, 5, 8, 9]])
    (rule,) = expect.without_waste(case)
    assert (rule.steps, rule.nfe) == ([0, 0, 1, 1], 2)
    (before,) = expect.without_waste(case, expect.departure(case))
    assert (before.until, before.nfe, list(before.ids)) == (1, None, [9, 8, 9, 9])
    (published,) = expect.published(case)
    assert (published.steps, published.nfe) == ([1, 1, 3, 3], 4)
    assert list(published.edits) == [(3, 1, 8, 9)]
    assert expect.last_writes([0, 1, 2], [[4, 1, 8, 9], [3, 1, 7, 8]]) == [0, 4, 2]


def test_the_factor_quirk_shows(recorded):
    one, other_one = data_of(recorded, "factor"), data_of(recorded, "factor-fixed")
    assert one["nfe"] < other_one["nfe"]


@pytest.mark.parametrize("network", ["sdar_tiny_a", "llada2_tiny_a"])
def test_recomputing_everything_gives_the_reference_too(reference, network):
    cases = [case for case in read_cases(reference / "decoding") if case.network.name == network]
    runner = Conformance(cases, "cpu")
    for case in cases:
        rule, *_ = runner.replay(case, cache="none")
        assert rule.passed, rule


def test_a_predicted_mask_is_replaced_by_the_next_best_token(reference):
    (case,) = [case for case in read_cases(reference / "decoding") if case.network.name.endswith("maskpred")]
    assert case.data["mask_id"] in case.data["output_ids"][0]
    lm = load(case.network, device="cpu")
    (found,) = generate(lm, case.prompts, map_case(case).rule, [0])
    assert case.data["mask_id"] not in found.token_ids
    assert min(found.step_map) >= 0
