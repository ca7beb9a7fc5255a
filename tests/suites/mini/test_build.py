"""The shipped mini benchmarks: reproducible, disjoint, solvable."""

from __future__ import annotations

import hashlib
import json
import random
import re
from pathlib import Path

import pytest
from dare_bench.suites.mini import build, choice, corpus, gsm

FOLDER = Path(build.__file__).parent
SPLITS = ("train", "validation", "test")


def read(benchmark: str, split: str) -> list[dict]:
    lines = (FOLDER / f"{benchmark}.{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_files_are_what_the_script_writes(tmp_path: Path) -> None:
    manifest = build.write(tmp_path)
    assert len(manifest) == 9
    for name, described in manifest.items():
        shipped = (FOLDER / name).read_bytes()
        assert (tmp_path / name).read_bytes() == shipped
        assert hashlib.sha256(shipped).hexdigest() == described["sha256"]
    assert (tmp_path / "MANIFEST.json").read_bytes() == (FOLDER / "MANIFEST.json").read_bytes()


@pytest.mark.parametrize("benchmark", ["mini_gsm", "mini_choice", "mini_code"])
def test_splits_are_large_and_disjoint(benchmark: str) -> None:
    rows = {split: read(benchmark, split) for split in SPLITS}
    assert len(rows["train"]) >= 2000
    assert len(rows["test"]) == 500
    texts = {split: {build.normalise(row["question"]) for row in found} for split, found in rows.items()}
    for split in SPLITS:
        assert len(texts[split]) == len(rows[split]), "a question occurs twice"
    assert not texts["train"] & texts["test"]
    assert not texts["validation"] & (texts["train"] | texts["test"])


def test_number_tuples_of_stories_are_held_out() -> None:
    keys = {split: {build.split_key("mini_gsm", row) for row in read("mini_gsm", split)} for split in SPLITS}
    assert not keys["train"] & keys["test"]
    assert not keys["train"] & keys["validation"]


def test_worked_steps_are_true_and_end_in_the_answer() -> None:
    for row in read("mini_gsm", "test") + read("mini_gsm", "train"):
        steps = re.findall(r"(\d+)([+*-])(\d+)=(\d+)\.", row["solution"])
        assert steps, row["solution"]
        for left, sign, right, result in steps:
            a, b = int(left), int(right)
            assert {"+": a + b, "-": a - b, "*": a * b}[sign] == int(result)
        assert steps[-1][3] == row["answer"]
        assert row["solution"].endswith(f"\\boxed{{{row['answer']}}}")
        for number in row["numbers"]:
            assert re.search(rf"\b{number}\b", row["question"]), "a number of the story is not in its text"


def test_half_of_the_templates_are_closed_in_each_style() -> None:
    styles = [template.style for template in gsm.TEMPLATES]
    assert styles.count("boxed") == styles.count("plain") == 8
    assert len({template.name for template in gsm.TEMPLATES}) == 16


def test_choices_hold_the_right_answer_once_and_letters_are_balanced() -> None:
    known = {relation.name: dict(relation.pairs) for relation in choice.RELATIONS}
    letters = []
    for row in read("mini_choice", "test"):
        right = known[row["template"]][row["key"]]
        assert row["choices"].count(right) == 1
        assert len(set(row["choices"])) == 4
        assert row["choices"][choice.LETTERS.index(row["answer"])] == right
        letters.append(row["answer"])
    assert all(90 <= letters.count(letter) <= 160 for letter in choice.LETTERS)


def test_code_references_pass_their_own_asserts() -> None:
    for row in read("mini_code", "test")[:200]:
        space: dict = {}
        exec(row["solution"], space)  # our own reference solutions, generated from a table in this repository
        for line in row["tests"]:
            call, _, expected = line.removeprefix("assert ").partition(" == ")
            assert eval(call, space) == eval(expected, {}), line


def test_corpus_keeps_out_of_the_other_splits() -> None:
    tests = {build.normalise(row["question"]) for split in ("validation", "test") for row in read("mini_gsm", split)}
    tests |= {
        build.normalise(row["question"]) for split in ("validation", "test") for row in read("mini_choice", split)
    }
    for kind in ("story", "fact"):
        assert not {build.normalise(row["question"]) for row in corpus.rows(kind, 3000)} & tests


def test_corpus_is_a_function_of_its_seed_and_mixes_styles_by_template() -> None:
    assert corpus.rows("story", 50) == corpus.rows("story", 50)
    assert corpus.rows("story", 50) != corpus.rows("story", 50, seed=1)
    rng, own = random.Random(3), 0
    styles = {template.name: template.style for template in gsm.TEMPLATES}
    drawn = [corpus.story(rng) for _ in range(2000)]
    texts = {template.name: re.split(r"\{\w+\}", template.text) for template in gsm.TEMPLATES}
    for row in drawn:
        name = next(name for name, parts in texts.items() if all(part in row["question"] for part in parts))
        boxed = "\\boxed{" in row["solution"]
        own += boxed == (styles[name] == "boxed")
    assert 0.80 < own / len(drawn) < 0.88


def test_drills_are_true() -> None:
    for row in corpus.rows("arithmetic", 500):
        for equation in row["solution"].split(". "):
            left, _, result = equation.rstrip(".").partition("=")
            assert re.fullmatch(r"\d+[+*-]\d+", left)
            assert eval(left) == int(result)  # digits and one sign, checked above
    for row in corpus.rows("copy", 200):
        assert row["question"] == f"Repeat: {row['solution']}"
