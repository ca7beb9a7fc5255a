r"""GSM8K on the real rows of the reference folder: golds, prompt, identity, refusals."""

from __future__ import annotations

import hashlib
import itertools
import json

import pytest
from dare_bench.suites import data
from dare_bench.suites.benchmarks import registry
from dare_bench.suites.benchmarks.gsm8k import SOURCES, split_answer
from dare_bench.suites.errors import DataError

GSM8K = registry.get("gsm8k")


@pytest.fixture(scope="session")
def folder(reference):
    path = reference / "data"
    if not (path / "gsm8k_test.jsonl").is_file():
        pytest.skip(f"{path}/gsm8k_test.jsonl is not here")
    return path


def test_protocol_is_std_1_of_the_specification():
    protocol = GSM8K.protocol("std-1")
    assert protocol.template == ("{question}\nPlease reason step by step, and put your final answer within \\boxed{}.")
    assert (protocol.system, protocol.few_shot, protocol.gen_length, protocol.scorer) == (None, 0, 512, "math/number")


def test_all_golds_are_right(folder):
    """Facts counted by others: 1,319 rows, 14 golds with a comma, 2 negative."""
    written = [fields["answer"].rpartition("#### ")[2] for fields in data.load(SOURCES["test"], folder)]
    rows = GSM8K.rows("test", data_dir=folder)
    assert len(rows) == len(written) == 1319 and len({row.id for row in rows}) == 1319
    assert [row.gold for row in rows] == [gold.replace(",", "") for gold in written]
    assert (sum("," in gold for gold in written), sum(int(row.gold) < 0 for row in rows)) == (14, 2)


FORMS = [
    r"\boxed{%s}",
    "#### %s",
    "The answer is $%s.",
    "So 1 + 1 = %s",
    r"We count 3 boxes and 7 bags. **Final answer:** %s apples<|eot_id|><|endoftext|> 5",
]


@pytest.mark.parametrize("form", FORMS)
def test_golds_in_every_form_are_right_and_another_row_s_gold_is_wrong(folder, form):
    scorer = GSM8K.scorer()
    rows = GSM8K.rows("test", data_dir=folder)
    for row, other in itertools.pairwise(rows):
        assert scorer.score(form % f"{int(row.gold):,}", row).value == 1.0
        assert scorer.score(form % other.gold, row).value == float(other.gold == row.gold)


def test_published_and_worked_answers_are_right(folder):
    scorer = GSM8K.scorer()
    rows = GSM8K.rows("test", data_dir=folder)
    published = data.load(SOURCES["test"], folder)
    verdicts = [scorer.score(fields["answer"], row) for fields, row in zip(published, rows, strict=True)]
    assert sum(verdict.value for verdict in verdicts) == 1319
    assert sum(scorer.score(row.solution, row).metrics["strict"] for row in rows) == 1319
    assert [row.id for row in rows if "<<" in row.solution or "####" in row.solution] == []


def test_prompt_and_limit(folder):
    rows = GSM8K.rows("test", data_dir=folder, limit=50)
    assert len(rows) == 50 and rows[0].id == "gsm8k-test-0000" and rows[0].gold == "18"
    messages = GSM8K.messages(rows[0])
    assert len(messages) == 1 and messages[0]["role"] == "user"
    assert messages[0]["content"].startswith("Janet") and messages[0]["content"].endswith("within \\boxed{}.")


def test_identity_does_not_name_the_folder(folder):
    identity = GSM8K.data_id("test", folder)
    assert identity["sha256"] == "752adc99f23132275139f1f7be57126b08735a55daf0c56859ee6df70abafbac"
    assert (identity["id"], identity["split"], identity["n"]) == ("openai/gsm8k:main", "test", 1319)
    assert str(folder) not in str(identity)


def test_edited_and_truncated_copies_are_refused(folder, tmp_path):
    raw = (folder / "gsm8k_test.jsonl").read_bytes()
    copy = tmp_path / "gsm8k_test.jsonl"
    for damaged in (
        raw.replace(b"#### 18", b"#### 19", 1),
        raw[: len(raw) // 2],
        raw.replace(b'"answer"', b'"target"'),
    ):
        copy.write_bytes(damaged)
        with pytest.raises(DataError) as caught:
            GSM8K.rows("test", data_dir=tmp_path, limit=1)
        message = str(caught.value)
        for part in (str(copy), SOURCES["test"].file_sha256[0], "columns question, answer", "1,319 rows"):
            assert part in message
    copy.write_bytes(raw)
    assert len(GSM8K.rows("test", data_dir=tmp_path)) == 1319
    with pytest.raises(DataError, match=r"gsm8k_train.jsonl: no such file.*7,473 rows"):
        GSM8K.training_examples(data_dir=tmp_path)


def test_the_authors_ascii_form_is_accepted(folder, tmp_path):
    lines = (folder / "gsm8k_test.jsonl").read_text(encoding="utf-8").split("\n")
    ascii_form = "".join(json.dumps(json.loads(line)) + "\n" for line in lines if line)
    assert hashlib.sha256(ascii_form.encode()).hexdigest() == SOURCES["test"].file_sha256[1]
    (tmp_path / "gsm8k_test.jsonl").write_text(ascii_form, encoding="ascii")
    assert GSM8K.rows("test", data_dir=tmp_path) == GSM8K.rows("test", data_dir=folder)


@pytest.mark.parametrize(
    ("answer", "steps", "gold"),
    [
        ("He has 2*3=<<2*3=6>>6 eggs.\n#### 6", "He has 2*3=6 eggs.", "6"),
        ("So $1,080.\n#### 1,080", "So $1,080.", "1080"),
        ("It is cold.\n#### -10", "It is cold.", "-10"),
        ("#### 3 is no gold\n#### 4", "#### 3 is no gold", "4"),
    ],
)
def test_answers_are_split(answer, steps, gold):
    assert split_answer(answer) == (steps, gold)


@pytest.mark.parametrize("answer", ["no mark", "#### ", "#### five", "#### 1.5", "####5"])
def test_answers_without_a_whole_number_are_errors(answer):
    with pytest.raises(ValueError, match="no whole number after the last '#### '"):
        split_answer(answer)
