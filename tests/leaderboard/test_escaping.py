import pytest
from dare_bench.leaderboard.escaping import clip, finalize, safe, slug, visible
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\x00b", "a␀b"),
        ("\x1b[31m", "␛[31m"),
        ("\r", "␍"),
        ("\x7f", "␡"),
        ("\u202eevil", "⟦U+202E⟧evil"),
        ("a\u2066b\u200b", "a⟦U+2066⟧b⟦U+200B⟧"),
        ("line\u2028end", "line⟦U+2028⟧end"),
        ("\ud800", "⟦U+D800⟧"),
        ("tab\tand\nline stay", "tab\tand\nline stay"),
        ("é ü 漢 🙂", "é ü 漢 🙂"),
        ("Z" + "\u0301" * 50, "Z" + "\u0301" * 4 + "⟦+marks⟧"),
    ],
)
def test_hidden_characters_become_visible(raw, shown):
    assert visible(raw) == shown


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_any_text_is_encodable_and_inert(text):
    shown = str(safe(text))
    shown.encode("utf-8")
    assert not set("<>\"'") & set(shown)


def test_finalize_leaves_markup_and_numbers_alone():
    assert finalize(Markup("<b>\x00</b>")) == "<b>\x00</b>"
    assert finalize(3) == 3
    assert finalize("\x00") == "␀"


def test_clip_counts_what_it_leaves_out():
    assert clip("abc", 3) == ("abc", 0)
    assert clip("x" * 100_000, 10) == ("x" * 10, 99_990)
    kept, cut = clip("\u202e" * 100, 100)
    assert len(kept) + cut == 100
    assert 0 < len(str(safe(kept)).encode()) <= 200


def test_slug():
    assert slug("Not run / 漢") == "not-run"
    assert slug("漢") == "x"
