"""Rewards of rollouts: from the manifest to the plan, the fingerprint, the job and what is logged."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from dare_bench.harness import fingerprint as prints
from dare_bench.harness.jobs.columns import training_columns
from dare_bench.harness.prepare import Options, prepare
from dare_bench.suites.rewards import Choice

MANIFEST = """\
suite: t
models: [tiny-sdar]
algorithms: [base, {name: d1, group_size: 2}]
benchmarks: [{name: mini_gsm, limit: 2}]
train:
  data: {mini_gsm: train, mini_choice: train}
  decoder: {gen_length: 16}
  steps: 1
  batch_size: 2
  rewards: REWARDS
"""
GIVEN = "{exact: 1, code_format: 0.5, countdown: {weight: 2, format_score: 0}}"

# value of `rewards` | key path below train.rewards | given | allowed | nearest (empty: not checked)
TABLE = r"""
{exactt: 1} | .exactt | 'exactt' | code_format, countdown, exact | exact
{exact: yes} | .exact | 'yes' | a number >= 0 |
{exact: true} | .exact | true | a number >= 0 |
{exact: -1} | .exact | -1 | a number >= 0 |
{exact: null} | .exact | null | {weight: NUMBER, OPTION: VALUE} |
{exact: .nan} | .exact | '.nan' | a number >= 0 |
{exact: {weight: x}} | .exact.weight | 'x' | a number >= 0 |
{exact: {weigth: 1}} | .exact.weigth | 1 | weight, truncated_within | weight
{exact: 1, countdown: {format_scor: 0}} | .countdown.format_scor | 0 | weight, truncated_within, format_score | format_score
{exact: 1, countdown: {format_score: x}} | .countdown.format_score | 'x' | a number |
{exact: 1, countdown: {format_score: 3}} | .countdown.format_score | 3 | 0 to below 1 |
{exact: 1, sudoku: 1} | .sudoku | rows of mini_gsm have no column puzzle | code_format, countdown, exact |
{countdown: 1} |  | countdown: 1 | one of code_format, exact |
{exact: 0} |  | exact: 0 | with a weight above 0 |
{} |  | {} | at least one entry |
[exact] |  | ['exact'] | a mapping |
"""
CASES = [
    tuple(part.strip() for part in line.split(" | ")) for line in TABLE.replace("|\n", "| \n").strip("\n").split("\n")
]


def work(text: str, folder: Path) -> Any:
    path = folder / "suite.yaml"
    path.write_text(text, encoding="utf-8")
    settings = {"db": f"sqlite:///{folder}/x.db", "runs": folder / "runs", "device": "cpu"}
    return prepare(Options(str(path), **settings), is_offline=True).work  # type: ignore[arg-type]


def training(text: str, folder: Path) -> Any:
    (job,) = work(text, folder).of_kind("train")
    return job


@pytest.mark.parametrize(("value", "key", "given", "allowed", "near"), CASES, ids=[case[0] for case in CASES])
def test_each_mistake_names_place_key_value_and_what_is_allowed(
    value: str, key: str, given: str, allowed: str, near: str, invoke: Any, in_tmp: Path
) -> None:
    Path("bad.yaml").write_text(MANIFEST.replace("REWARDS", value), encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == 2 and "Traceback" not in answer.err
    blocks = answer.err.split("\nbad.yaml:")[1:]
    block = next((block for block in blocks if block.startswith(f"10: train.rewards{key}: ")), None)
    assert block is not None, answer.err
    assert given in block.split("given:")[1].splitlines()[0]
    assert allowed in block.split("allowed:")[1]
    assert not near or f"nearest: {near}" in block


def test_the_job_gets_weights_and_all_options(tmp_path: Path) -> None:
    job = training(MANIFEST.replace("REWARDS", GIVEN), tmp_path)
    assert job.spec["rewards"] == [
        ["exact", 1.0, {"truncated_within": None}],
        ["code_format", 0.5, {"truncated_within": None, "strict_newline": False}],
        ["countdown", 2.0, {"truncated_within": None, "format_score": 0.0}],
    ]
    assert training_columns(job.spec)["config"]["rewards"] == job.spec["rewards"]


def test_without_the_key_nothing_changes(tmp_path: Path) -> None:
    plain = training(MANIFEST.replace("  rewards: REWARDS\n", ""), tmp_path)
    assert plain.spec["rewards"] == [] and "rewards" not in training_columns(plain.spec)["config"]
    # The default written out, or with something that is only logged, is the same training.
    for same in ("{exact: 1}", "{exact: {weight: 1.0}}", "{exact: 1, code_format: 0}"):
        assert training(MANIFEST.replace("REWARDS", same), tmp_path).fingerprint == plain.fingerprint
    for other in (GIVEN, "{exact: 2}", "{shaped: 1}", "{exact: {weight: 1, truncated_within: 0}}"):
        assert training(MANIFEST.replace("REWARDS", other), tmp_path).fingerprint != plain.fingerprint


def test_supervised_training_has_none(tmp_path: Path) -> None:
    text = MANIFEST.replace("{name: d1, group_size: 2}", "sft")
    with_rewards = training(text.replace("REWARDS", GIVEN), tmp_path)
    without = training(text.replace("  rewards: REWARDS\n", ""), tmp_path)
    assert with_rewards.spec["rewards"] == [] and with_rewards.fingerprint == without.fingerprint


def test_rows_that_no_scorer_grades_can_be_trained_on(tmp_path: Path) -> None:
    text = MANIFEST.replace("mini_choice: train", "mini_corpus: function")
    job = training(text.replace("REWARDS", "{exact: 1, code_format: 1}"), tmp_path)
    assert ["reward" in part for part in job.spec["data_identity"]] == [True, False]
    only_form = training(text.replace("REWARDS", "{code_format: 1}"), tmp_path)
    assert ["reward" in part for part in only_form.spec["data_identity"]] == [False, False]


def test_order_and_logged_rewards_do_not_determine_a_training() -> None:
    first, second = Choice("exact", 1.0, {"truncated_within": None}), Choice("countdown", 2.0, {"format_score": 0.0})
    logged = Choice("code_format", 0.0, {})
    paid = prints.paid_rewards([first, second])
    assert (
        paid
        == prints.paid_rewards([second, logged, first])
        == [
            ["countdown", 1, 2.0, {"format_score": 0.0}],
            ["exact", 1, 1.0, {"truncated_within": None}],
        ]
    )
    assert prints.paid_rewards([dataclasses.replace(second, weight=1.0)]) != prints.paid_rewards([second])
    assert prints.paid_rewards([]) == prints.paid_rewards([first]) == []


def test_list_shows_options(invoke: Any) -> None:
    answer = invoke("list", "rewards")
    assert answer.code == 0
    line = next(line for line in answer.out.splitlines() if line.startswith("countdown"))
    assert "gold, numbers" in line and "format_score: 0.1" in line and "truncated_within" in line


@pytest.mark.slow
def test_a_mixed_run_logs_each_function_and_its_rules(invoke: Any, in_tmp: Path) -> None:
    from dare_bench.results.queries import training_points
    from dare_bench.results.store import Store

    Path("suite.yaml").write_text(MANIFEST.replace("REWARDS", GIVEN), encoding="utf-8")
    answer = invoke("run", "suite.yaml", "--device", "cpu")
    assert answer.code == 0, answer.err
    (job,) = work(MANIFEST.replace("REWARDS", GIVEN), Path()).of_kind("train")
    with Store.open("sqlite:///runs/dare-bench.db", create=False) as store:
        (point,) = training_points(store, job.fingerprint)
    metrics = point.metrics
    exact, form = "reward/mini_gsm+mini_choice_exact", "reward/mini_gsm+mini_choice_code_format"
    assert {exact, form, "reward/mini_gsm_countdown"} <= set(metrics)
    assert sum(value for name, value in metrics.items() if name.startswith(exact + "/")) == pytest.approx(1)
    # Two prompts, two responses each: the part of the sum that both benchmarks share can be read off.
    assert metrics["reward"] >= metrics[exact] + 0.5 * metrics[form] - 1e-6
