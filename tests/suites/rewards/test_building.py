"""Rewards: TRL's signature, the same grader as the tables, exact beside shaped."""

from __future__ import annotations

import pytest
from dare_bench.suites import rewards
from dare_bench.suites.benchmarks import registry
from dare_bench.suites.errors import NotScorableError, SuiteError, UnknownNameError

MINI = registry.get("mini_gsm")
ANSWERS = [r"12+7=19. \boxed{19}", "12+7=19. The answer is 19.", r"\boxed{18}", "The answer is 18.", ""]
GOLD = ["19"] * 5
PROMPTS = ["q"] * 5


def test_exact_pays_what_the_table_counts():
    assert MINI.reward("exact")(PROMPTS, ANSWERS, gold=GOLD) == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_shaped_orders_form_and_value():
    assert MINI.reward("shaped")(PROMPTS, ANSWERS, gold=GOLD) == [1.0, 0.3, 0.1, 0.0, 0.0]


def test_conversational_completions_and_arguments_of_trainers():
    chats = [[{"role": "assistant", "content": answer}] for answer in ANSWERS]
    chat_prompts = [[{"role": "user", "content": "q"}]] * 5
    got = MINI.reward()(
        chat_prompts,
        chats,
        gold=GOLD,
        id=["x"] * 5,
        numbers=[[12, 7]] * 5,
        trainer_state=object(),
        completion_ids=[[1]] * 5,
    )
    assert got == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_columns_reach_the_scorer():
    """Ten options: the letter J is only right because `choices` says so."""
    choice = registry.get("mini_choice")
    ten = [f"o{index}" for index in range(10)]
    assert choice.reward()(["q"], [r"\boxed{J}"], gold=["J"], choices=[ten]) == [1.0]
    assert choice.reward()(["q"], [r"\boxed{J}"], gold=["J"], choices=[ten[:4]]) == [0.0]


def test_exact_is_logged_beside_shaped():
    functions, weights = rewards.reward_functions(MINI, "shaped")
    assert ([function.__name__ for function in functions], weights) == (
        ["mini_gsm_shaped", "mini_gsm_exact"],
        [1.0, 0.0],
    )
    functions, weights = rewards.reward_functions(MINI, "exact")
    assert ([function.__name__ for function in functions], weights) == (["mini_gsm_exact"], [1.0])


def test_protocol_whose_score_is_the_value_pays_fully_for_the_value():
    assert registry.get("gsm8k").reward("shaped")(["q"], ["The answer is 18."], gold=["18"]) == [1.0]


def test_training_examples_fit_the_reward():
    examples = MINI.training_examples("train", limit=20)
    columns = {key: [example[key] for example in examples] for key in examples[0]}
    chats, completions = columns.pop("prompt"), columns.pop("completion")
    assert MINI.reward("exact")(chats, completions, **columns) == [1.0] * 20


def test_errors():
    with pytest.raises(SuiteError, match=r"column 'gold' is missing \(columns: id\)"):
        MINI.reward()(["q"], ["a"], id=["x"])
    with pytest.raises(SuiteError, match="column 'gold' is a str, not a list of 1"):
        MINI.reward()(["q"], ["a"], gold="1")
    with pytest.raises(SuiteError, match="2 prompts but 1 completions"):
        MINI.reward()(["q", "q"], ["a"], gold=["1"])
    with pytest.raises(SuiteError, match="neither text nor a list of chat messages"):
        MINI.reward()(["q"], [None], gold=["1"])
    with pytest.raises(UnknownNameError, match=r"unknown reward 'shape'; did you mean 'shaped'\?"):
        MINI.reward("shape")
    with pytest.raises(NotScorableError, match="sandbox"):
        registry.get("mini_code").reward()
