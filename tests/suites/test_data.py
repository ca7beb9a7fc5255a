"""Rows are the published ones or refused, with a message that says path, problem, expectation and next step."""

from __future__ import annotations

import hashlib
import json
import sys
import types

import pytest
from dare_bench.suites import data
from dare_bench.suites.errors import DataError

COLUMNS = ("question", "answer")
ROWS = [{"question": f"What is {n} + 1?", "answer": f"It is\u2028 #### {n + 1}"} for n in range(20)]
CONTENT = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
SHA256 = hashlib.sha256(CONTENT.encode()).hexdigest()
SOURCE = data.Source(
    hub_id="org/set",
    config="main",
    split="test",
    revision="f" * 40,
    file_name="set_test.jsonl",
    columns=COLUMNS,
    n_rows=20,
    content_sha256=SHA256,
    file_sha256=(SHA256,),
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / SOURCE.file_name).write_bytes(CONTENT.encode())
    return tmp_path


def refusal(folder) -> str:
    with pytest.raises(DataError) as caught:
        data.load(SOURCE, folder)
    return str(caught.value)


def test_a_good_file_is_read_in_order(folder):
    assert data.load(SOURCE, folder) == ROWS
    assert data.load(SOURCE, str(folder)) == ROWS


DAMAGE = {
    "truncated in a row": (lambda raw: raw[:-40], "line 20: not JSON"),
    "truncated between rows": (lambda raw: b"\n".join(raw.split(b"\n")[:7]) + b"\n", "7 rows, so it is cut short"),
    "edited": (lambda raw: raw.replace(b"#### 5", b"#### 6"), "the file was changed"),
    "one byte more": (lambda raw: raw + b"\n", "the file was changed"),
    "other columns": (lambda raw: raw.replace(b'"answer"', b'"reply"'), "line 1: has the columns question, reply"),
    "a further column": (
        lambda raw: raw.replace(b'{"q', b'{"x": 1, "q'),
        "line 1: has the columns answer, question, x",
    ),
    "a list": (lambda raw: b"[1, 2]\n" + raw, "line 1: a JSON list, not an object"),
    "deep nesting": (lambda raw: b"[" * 100_000, "line 1: not JSON"),
    "not text": (lambda raw: raw.replace(b"What", b"\xff\xfe"), "line 1: not UTF-8 text"),
    "empty": (lambda raw: b"", "0 rows"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused(folder, damage):
    change, problem = DAMAGE[damage]
    path = folder / SOURCE.file_name
    path.write_bytes(change(path.read_bytes()))
    message = refusal(folder)
    assert problem in message
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    for part in (str(path), SHA256, found, "question, answer", "20 rows", "org/set", SOURCE.revision, "--data"):
        assert part in message, part


def test_missing_file_and_folder_in_its_place(tmp_path):
    message = refusal(tmp_path)
    assert f"{tmp_path / SOURCE.file_name}: no such file" in message
    assert SHA256 in message and "Put the unchanged file there" in message
    (tmp_path / SOURCE.file_name).mkdir()
    assert "a folder, not a file" in refusal(tmp_path)


def test_content_hash_does_not_depend_on_the_form_of_the_file(tmp_path):
    path = tmp_path / "ascii.jsonl"
    path.write_text("".join(json.dumps(dict(reversed(row.items()))) + "\r\n" for row in ROWS), encoding="utf-8")
    rows = data.read_jsonl(path, COLUMNS)
    assert data.content_sha256(rows, COLUMNS) == SHA256
    assert data.content_sha256(rows[::-1], COLUMNS) != SHA256


class _Table(list):
    column_names = ("question", "answer", "extra")


def hub(monkeypatch, load_dataset) -> None:
    """Puts a stand-in for the `datasets` library in place: no test touches the network."""
    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_hub_is_asked_for_the_pinned_revision(monkeypatch):
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        return _Table([{**row, "extra": 1} for row in ROWS])

    hub(monkeypatch, load_dataset)
    assert data.load(SOURCE) == ROWS
    assert calls == [(("org/set", "main"), {"split": "test", "revision": "f" * 40})]


def test_hub_rows_that_differ_or_cannot_be_had_are_refused(monkeypatch):
    hub(monkeypatch, lambda *args, **kwargs: _Table([{**row, "extra": 1} for row in ROWS[1:]]))
    with pytest.raises(DataError, match=r"holds 19 rows with content sha256 [0-9a-f]{64}; expected 20 rows with"):
        data.load(SOURCE)

    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'org/set' on the Hub")

    hub(monkeypatch, unreachable)
    with pytest.raises(DataError, match=r"ConnectionError: Couldn't reach .*Give a folder with set_test.jsonl"):
        data.load(SOURCE)


def test_a_local_folder_is_never_replaced_by_the_hub(monkeypatch, tmp_path):
    hub(monkeypatch, lambda *args, **kwargs: pytest.fail("the hub was asked although a folder was given"))
    assert "no such file" in refusal(tmp_path)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "3"])
def test_bad_limits(limit):
    with pytest.raises(DataError, match="allowed: a whole number from 1"):
        data.first_rows(ROWS, limit)


def test_limits():
    assert data.first_rows(ROWS, 3) == ROWS[:3]
    assert data.first_rows(ROWS, 99) == data.first_rows(ROWS, None) == ROWS
