"""Shipped benchmarks: verified against their manifest, right golds, training examples, and what cannot be scored."""

from __future__ import annotations

import hashlib
import json

import pytest
from dare_bench.suites import data
from dare_bench.suites.benchmarks import registry
from dare_bench.suites.errors import DataError, NotScorableError, SuiteError

SMALL = {
    "mini_gsm": {
        "id": "g0", "question": "2 and 3?", "solution": "2+3=5. \\boxed{5}", "answer": "5", "template": "buy",
        "numbers": [2, 3],
    },
    "mini_choice": {
        "id": "c0", "question": "Which says moo?\nA) cow\nB) dog", "solution": "It is cow. \\boxed{A}",
        "choices": ["cow", "dog"], "answer": "A",
    },
    "mini_code": {
        "id": "p0", "question": "Write f.", "solution": "def f(x): return x", "entry_point": "f",
        "tests": ["assert f(1) == 1"],
    },
}  # fmt: skip


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder with one row of each benchmark in place of the shipped one; returns a writer of other rows."""
    monkeypatch.setattr(data, "MINI_DIR", tmp_path)

    def write(name: str, *rows: dict, manifest: dict | None = None) -> None:
        raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
        file_name = f"{name}.test.jsonl"
        (tmp_path / file_name).write_bytes(raw)
        entry = {"sha256": hashlib.sha256(raw).hexdigest(), "rows": len(rows)}
        (tmp_path / "MANIFEST.json").write_text(json.dumps({file_name: entry} if manifest is None else manifest))

    return write


@pytest.mark.parametrize("name", SMALL)
def test_rows(small, name):
    small(name, SMALL[name])
    benchmark = registry.get(name)
    (row,) = benchmark.rows("test")
    fields = SMALL[name]
    assert (row.id, row.question, row.solution) == (fields["id"], fields["question"], fields["solution"])
    assert row.gold == fields.get("answer", fields["solution"])
    assert benchmark.messages(row) == [{"role": "user", "content": fields["question"]}]
    identity = benchmark.data_id("test")
    assert (identity["id"], identity["split"], identity["n"], len(identity["sha256"])) == (name, "test", 1, 64)
    (example,) = benchmark.training_examples("test")
    assert example["completion"] == fields["solution"]
    assert example["prompt"] == benchmark.messages(row)
    assert {key: example[key] for key in row.columns} == dict(row.columns)


BAD_FIELDS = [
    ("mini_gsm", {"answer": "five"}, "row 1: invalid literal"),
    ("mini_gsm", {"question": " "}, "column 'question' is ' ', allowed: non-empty text"),
    ("mini_choice", {"answer": "C"}, "column 'answer' is 'C', allowed: one of A, B"),
    ("mini_choice", {"choices": "cow"}, "column 'choices' is 'cow'"),
    ("mini_code", {"solution": None}, "column 'solution' is None"),
]


@pytest.mark.parametrize(("name", "change", "message"), BAD_FIELDS)
def test_fields_of_the_wrong_kind_are_refused(small, name, change, message):
    small(name, {**SMALL[name], **change})
    with pytest.raises(DataError, match="regenerate the file") as caught:
        registry.get(name).rows("test")
    assert message in str(caught.value)


def test_changed_files_and_bad_manifests_are_refused(small, tmp_path):
    small("mini_gsm", SMALL["mini_gsm"])
    path = tmp_path / "mini_gsm.test.jsonl"
    path.write_bytes(path.read_bytes().replace(b"2 and 3", b"2 and 4"))
    with pytest.raises(DataError, match=r"the checksum is another one.*Reinstall dare-bench"):
        registry.get("mini_gsm").rows("test")
    for manifest in ({}, {"mini_gsm.test.jsonl": {"rows": 1}}, {"mini_gsm.test.jsonl": 3}):
        small("mini_gsm", SMALL["mini_gsm"], manifest=manifest)
        with pytest.raises(DataError, match=r"no usable entry for mini_gsm\.test\.jsonl"):
            registry.get("mini_gsm").rows("test")
    small("mini_gsm", SMALL["mini_gsm"], SMALL["mini_gsm"])
    with pytest.raises(DataError, match="row ids repeat"):
        registry.get("mini_gsm").rows("test")


def test_reserved_columns_and_wrong_shots_are_errors(small):
    small("mini_gsm", {**SMALL["mini_gsm"], "prompt": "x"})
    benchmark = registry.get("mini_gsm")
    with pytest.raises(SuiteError, match="column 'prompt' is reserved"):
        benchmark.training_examples("test")
    (row,) = benchmark.rows("test")
    assert benchmark.shots() == []
    with pytest.raises(SuiteError, match="takes 0 worked examples, 1 are given"):
        benchmark.messages(row, shots=[row])


def test_mini_corpus_says_why_it_cannot_be_scored():
    corpus = registry.get("mini_corpus")
    assert not corpus.is_scorable and registry.get("mini_gsm").is_scorable
    with pytest.raises(NotScorableError, match=r"'mini_corpus' cannot be scored: it is pre-training text"):
        corpus.scorer()


@pytest.mark.parametrize("name", ["mini_gsm", "mini_choice"])
def test_shipped_solutions_are_right_and_in_form(name):
    benchmark = registry.get(name)
    scorer = benchmark.scorer()
    for split in benchmark.splits:
        rows = benchmark.rows(split)
        assert len(rows) >= (2000 if split == "train" else 500)
        assert [row.id for row in rows if scorer.score(row.solution, row).metrics["strict"] != 1.0] == []
    assert (scorer.headline, benchmark.protocol().system, benchmark.protocol().few_shot) == ("strict", None, 0)


def test_shipped_code_solutions_pass_their_tests():
    """Our own reference functions, not model-written code, so they may run here."""
    rows = registry.get("mini_code").rows("test")
    assert len(rows) >= 500
    for row in rows:
        scope: dict[str, object] = {}
        exec(row.solution, scope)
        assert callable(scope[row.columns["entry_point"]])
        for test in row.columns["tests"]:
            exec(test, scope)


def test_preference_pairs_of_mini_gsm() -> None:
    """The rejected answer has the form of the worked one, another number, and right arithmetic but for one slip."""
    benchmark = registry.get("mini_gsm")
    assert benchmark.pairs_version == 1
    pairs = benchmark.training_examples("train", pairs=True, limit=400)
    assert pairs == benchmark.training_examples("train", pairs=True, limit=400)
    reward = benchmark.reward()
    gold = [pair["gold"] for pair in pairs]
    for side, expected in (("chosen", 1.0), ("rejected", 0.0)):
        completions = [[{"role": "assistant", "content": pair[side]}] for pair in pairs]
        assert set(reward([pair["prompt"] for pair in pairs], completions, gold=gold)) == {expected}
    slips = set()
    for pair in pairs:
        assert pair["chosen"] == pair["completion"]
        work, _, box = pair["rejected"].partition(" \\boxed")
        steps = [step.rstrip(".").split("=") for step in work.split()]
        wrong = [index for index, (left, right) in enumerate(steps) if eval(left) != int(right)]
        assert len(wrong) == 1 and box == f"{{{steps[-1][1]}}}"
        slips.add((len(steps), wrong[0]))
    assert slips == {(1, 0), (2, 0), (2, 1)}


def test_pairs_are_refused_where_there_are_none() -> None:
    benchmark = registry.get("mini_choice")
    assert benchmark.pairs_version is None
    with pytest.raises(SuiteError, match="mini_choice has no preference pairs"):
        benchmark.training_examples("train", pairs=True, limit=1)
