"""Scorer `code/asserts`: answers of mini_code."""

from __future__ import annotations

import pytest
from dare_bench.suites.benchmarks import registry
from dare_bench.suites.sandbox import Isolation, best
from dare_bench.suites.scoring import code_asserts


@pytest.fixture(autouse=True)
def isolated():
    if best().level == "none":
        pytest.skip("no isolation works here")


def test_shipped_solutions_are_right_and_others_are_not():
    bench = registry.get("mini_code")
    rows = bench.rows("test", limit=12)
    scorer = bench.scorer()
    found = scorer.score_all([row.solution for row in rows], rows)
    assert [verdict.value for verdict in found] == [1.0] * 12
    name = rows[0].columns["entry_point"]
    texts = [
        "",
        "I do not know.",
        "def other(x): return x",
        f"def {name}(*x): return None",
        rows[0].solution + "<|im_end|>)",
    ]
    found = scorer.score_all(texts, [rows[0]] * len(texts))
    assert [(verdict.value, verdict.status) for verdict in found] == [
        *[(0.0, "no_answer")] * 3,
        (0.0, "scored"),
        (1.0, "scored"),
    ]
    assert found[3].detail.startswith("failed: test 1 of 3")
    assert found[4].detail == f"passed: 3 of 3 tests (isolation {best().level})"
    assert (found[4].metrics, found[4].in_form) == ({"strict": 1.0, "value": 1.0}, True)
    assert scorer.score(texts[0], rows[0]) == found[0]


def test_a_flagged_program_says_so():
    row = registry.get("mini_code").rows("test", limit=1)[0]
    verdict = registry.get("mini_code").scorer().score(row.solution + "\nimport gc", row)
    assert (verdict.value, verdict.detail.partition("; ")[2]) == (1.0, "flagged: gc")


def test_without_isolation_it_refuses(monkeypatch):
    scorer = registry.get("mini_code").scorer()
    assert scorer.refusal() is None
    assert registry.get("mini_gsm").scorer().refusal() is None
    monkeypatch.setattr(code_asserts, "best", lambda: Isolation("none", True, "", ""))
    assert "no isolation works here; install bubblewrap" in scorer.refusal()
