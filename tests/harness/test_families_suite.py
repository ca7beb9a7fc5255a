"""The suite of all families, end to end; and what a worker does with a checkpoint's facts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from dare_bench.dare.families.registry import families
from dare_bench.harness.errors import JobError
from dare_bench.harness.jobs.session import Session
from dare_bench.results.queries import leaderboard_cells, samples
from dare_bench.results.store import Store


def dare_bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dare_bench.harness.cli", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_suite_says_what_it_is(invoke: Any) -> None:
    line = next(line for line in invoke("list", "suites").out.splitlines() if line.startswith("families "))
    assert "random weights" in line and "the scores mean nothing" in line


@pytest.mark.slow
def test_every_family_has_cells_samples_and_a_page(tmp_path: Path) -> None:
    began = time.monotonic()
    run = dare_bench(tmp_path, "run", "families", "--device", "cpu")
    assert run.returncode == 0, run.stderr
    publish = dare_bench(tmp_path, "publish", "--out", "site")
    assert publish.returncode == 0, publish.stderr
    wall_s = time.monotonic() - began
    print(f"families: {wall_s:.0f} s")
    assert wall_s < 300
    with Store.open(f"sqlite:///{tmp_path}/runs/dare-bench.db", create=False) as store:
        cells = leaderboard_cells(store, "families")
        assert {cell.status for cell in cells} == {"done"}
        by_family: dict[str, list[Any]] = {}
        for cell in cells:
            assert cell.evaluation is not None
            by_family.setdefault(cell.evaluation.family, []).append(cell)
        assert set(by_family) == set(families())
        for name, own in by_family.items():
            decoders = {cell.decoder for cell in own}
            assert decoders == ({"default"} if name in ("autoregressive", "diffusion_gemma") else {"default", "fast"})
            for cell in own:
                found = samples(store, cell.evaluation_fingerprint)
                assert len(found) == 8 and all(sample.trajectory and sample.score for sample in found)
                assert cell.evaluation.numerics["checkpoint"]["random"] == name
        fast = [cell for cell in by_family["sdar"] if cell.decoder == "fast"]
        slow = [cell for cell in by_family["sdar"] if cell.decoder == "default"]
        assert sum(cell.evaluation.costs.nfe for cell in fast) < sum(cell.evaluation.costs.nfe for cell in slow)
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html"))
    for name in families():
        assert f"random-{name.replace('_', '-')}" in pages
    shown = dare_bench(tmp_path, "show", "random-dream/base/mini_gsm/fast/0")
    assert shown.returncode == 0 and "checkpoint.config_sha256" in shown.stdout


def _model(**facts: Any) -> dict[str, Any]:
    return {"name": "m", "family": "sdar", "source": "random:sdar", "folder": None, "revision": None, "facts": facts}


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session({"runs": str(tmp_path), "device": "cpu"}, None, lambda *progress: None)  # type: ignore[arg-type]


def test_a_worker_loads_with_the_facts_that_are_given(session: Session, tmp_path: Path) -> None:
    plain = _model()
    folder = session.base_folder(plain)
    assert Path(folder).parent == tmp_path / "random"
    usual = session.load(folder, plain, dtype="float32", keep=True)
    facts = {
        "mask_token_id": 7, "pad_token_id": 8, "block_length": 4, "stop_tokens": ["<|im_end|>"],
        "reply_end": "<|endoftext|>", "chat_template": "{{ messages[0]['content'] }}{{ tail }}",
        "chat_options": {"tail": "!"}, "lora_targets": ".*q_proj",
    }  # fmt: skip
    lm = session.load(folder, _model(**facts), dtype="float32", keep=True)
    assert lm is not usual
    assert (lm.mask_token_id, lm.pad_token_id, lm.block_length) == (7, 8, 4)
    assert lm.family.stop_tokens == ("<|im_end|>",) and lm.family.lora_targets == ".*q_proj"
    assert lm.chat is not None and lm.chat.reply_end_id == lm.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert lm.render_chat([{"role": "user", "content": "Hi"}]) == "Hi!"
    assert session.load(folder, _model(**facts), dtype="float32", keep=True) is lm


@pytest.mark.parametrize("field", ["stop_tokens", "reply_end"])
def test_tokens_that_the_tokenizer_does_not_know(field: str, session: Session) -> None:
    model = _model(**{field: ["<|no|>"] if field == "stop_tokens" else "<|no|>"})
    with pytest.raises((JobError, ValueError), match=r"<\|no\|>"):
        session.load(session.base_folder(model), model, dtype="float32", keep=False)


def test_generate_makes_a_random_checkpoint_for_the_time_of_the_command(
    invoke: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer = invoke("generate", "random-dream", "hi", "--gen-length", "8", "--device", "cpu", "--trace")
    assert answer.code == 0, answer.err
    assert "answer: " in answer.out and "8 forwards" in answer.out
    assert not list(tmp_path.glob("dare-bench-*"))


@pytest.mark.parametrize("option", [("--threshold", "0.9"), ("--selector", "random"), ("--steps-per-block", "2")])
def test_generate_refuses_what_an_engine_does_not_honour(option: tuple[str, str], invoke: Any) -> None:
    answer = invoke("generate", "random-autoregressive", "hi", *option)
    assert answer.code == 2 and "the family autoregressive decodes by its own procedure" in answer.err
