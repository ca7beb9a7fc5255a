import io

import pytest
from dare_bench.leaderboard.text import table
from dare_bench.results.opening import StoreError
from rich.console import Console


def printed(store, width=200, **options):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table(store, **options))
    return console.file.getvalue()


def test_rows_states_and_reference(store):
    text = printed(store)
    lines = [line for line in text.splitlines() if "mini_gsm" in line]
    assert any("sft" in line and "▲" in line and "tiny-sdar" in line for line in lines)
    assert any("reference" in line and "1 run" in line for line in lines)
    assert "training failed: loss is not finite" in text
    assert "20 of 60 answers are stored" in text
    assert "seed variance unknown" in text


def test_a_name_that_never_changes_moves_to_the_title(empty_store, tools):
    tools.fill(empty_store, benchmarks=("mini_gsm",), decoders=("default",), seeds=(0,), labels=("sft",))
    text = printed(empty_store, width=100)
    assert "mini · model tiny-sdar · decoder default · benchmark mini_gsm" in text
    assert "±" in text


def test_escape_sequences_and_markup_are_shown_not_obeyed(empty_store, tools):
    maker = tools.Maker(empty_store, 10)
    maker.cell("[red]m\x1b[31m", "base", "b", "default", 0)
    maker.cell("n", "base", "b", "default", 0, state="failed", error="\x1b]0;owned\x07")
    maker.finish("[bold]s\x1b")
    text = printed(empty_store)
    assert "\x1b" not in text
    assert "[red]m␛[31m" in text
    assert "[bold]s␛" in text


def test_empty_and_unknown(empty_store):
    assert "nothing has been run yet" in printed(empty_store)
    with pytest.raises(StoreError):
        table(empty_store, suite="nosuch")
