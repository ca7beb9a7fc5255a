import pytest
from dare_bench.leaderboard.selection import N_SHOWN, stratified, verdict_word, viewer_answer
from dare_bench.leaderboard.source import Answer


def answer(i, value=1.0, status="scored", trace=False):
    return Answer(f"q{i:04d}", 0, 10, 20, value, status, trace)


@pytest.mark.parametrize(
    ("value", "status", "word"),
    [
        (1.0, "scored", "correct"),
        (0.5, "scored", "partly correct"),
        (0.0, "scored", "wrong"),
        (0.0, "no_answer", "no answer"),
        (None, None, "not scored"),
    ],
)
def test_words(value, status, word):
    assert verdict_word(value, status) == word


def test_strata_are_filled_and_the_choice_is_stable():
    light = [
        answer(i, float(i < 500), "scored" if i % 7 else "no_answer" if i >= 500 else "scored") for i in range(1000)
    ]
    chosen = stratified(light)
    words = [verdict_word(a.value, a.status) for a in chosen]
    assert len(chosen) == N_SHOWN
    assert (words.count("correct"), words.count("wrong"), words.count("no answer")) == (20, 20, 20)
    assert stratified(list(reversed(light))) == chosen
    assert [a.sample_id for a in chosen] == sorted(a.sample_id for a in chosen)


def test_one_sided_outcomes_still_fill_the_page():
    assert len(stratified([answer(i) for i in range(100)])) == N_SHOWN
    assert len(stratified([answer(i) for i in range(5)])) == 5
    assert stratified([]) == []


def test_viewer_prefers_a_correct_answer_with_a_trajectory():
    light = [answer(0), answer(1, 0.0, trace=True), answer(2, trace=True)]
    assert viewer_answer(light).sample_id == "q0002"
    assert viewer_answer(light[:2]).sample_id == "q0001"
    assert viewer_answer(light[:1]) is None
