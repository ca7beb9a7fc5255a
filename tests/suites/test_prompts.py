"""Prompts are rendered literally, and their hash changes with every character."""

from __future__ import annotations

import pytest
from dare_bench.suites import prompts
from dare_bench.suites.errors import SuiteError
from hypothesis import given
from hypothesis import strategies as st


def test_braces_in_templates_and_questions_are_text():
    filled = prompts.fill("{question} in \\boxed{}.", "Is {x} {question} 100%?")
    assert filled == "Is {x} {question} 100%? in \\boxed{}."


@pytest.mark.parametrize("template", ["", "no place", "{question} {question}", "{Question}"])
def test_templates_hold_the_question_once(template):
    with pytest.raises(SuiteError, match="exactly once"):
        prompts.fill(template, "q")


def test_conversation_with_system_and_shots():
    messages = prompts.conversation("Q: {question}", "c?", system="Be brief.", shots=[("a?", "A"), ("b?", "B")])
    assert [(message["role"], message["content"]) for message in messages] == [
        ("system", "Be brief."),
        ("user", "Q: a?"),
        ("assistant", "A"),
        ("user", "Q: b?"),
        ("assistant", "B"),
        ("user", "Q: c?"),
    ]
    assert prompts.conversation("{question}", "c?") == [{"role": "user", "content": "c?"}]


def test_hash_sees_every_character_and_the_order_but_not_the_order_of_keys():
    one = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]
    same = [[{"content": "a", "role": "user"}], [{"content": "b", "role": "user"}]]
    assert prompts.prompt_hash(one) == prompts.prompt_hash(same)
    others = [
        one[::-1],
        one[:1],
        [[{"role": "user", "content": "a "}], one[1]],
        [[{"role": "user", "content": "\ufeffa"}], one[1]],
    ]
    assert len({prompts.prompt_hash(prompt) for prompt in [one, *others]}) == 5


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_equal_hashes_mean_equal_prompts(first, second):
    assert (prompts.prompt_hash(first) == prompts.prompt_hash(second)) == (first == second)
