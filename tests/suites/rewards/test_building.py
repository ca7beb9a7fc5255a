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
CHOICE = registry.get("mini_choice")


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
    with pytest.raises(NotScorableError, match="pre-training text"):
        registry.get("mini_corpus").reward()


def test_a_run_without_choices_pays_the_protocols_score():
    functions, weights = rewards.training_functions([MINI])
    assert ([function.__name__ for function in functions], weights) == (["mini_gsm_exact"], [1.0])
    assert functions[0](PROMPTS, ANSWERS, gold=GOLD) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert functions[0].rules == ["box", "last number", "box", "last number", "no number found"]


def test_exact_is_added_with_weight_0_unless_it_is_chosen():
    shaped, form = rewards.Choice("shaped"), rewards.Choice("code_format", 0.5)
    functions, weights = rewards.training_functions([MINI], [shaped, form])
    names = ["mini_gsm_shaped", "mini_gsm_code_format", "mini_gsm_exact"]
    assert ([function.__name__ for function in functions], weights) == (names, [1.0, 0.5, 0.0])
    functions, weights = rewards.training_functions([MINI], [form, rewards.Choice("exact", 0.0)])
    assert weights == [0.5, 0.0] and functions[1].__name__ == "mini_gsm_exact"


def test_each_function_judges_the_completions_of_the_benchmarks_it_fits():
    chosen = [rewards.Choice("exact"), rewards.Choice("countdown", 2, {"format_score": 0})]
    functions, weights = rewards.training_functions([MINI, CHOICE], chosen)
    names = ["mini_gsm+mini_choice_exact", "mini_gsm_countdown"]
    assert ([function.__name__ for function in functions], weights) == (names, [1.0, 2.0])
    # Two benchmarks behind one function: as a mixed rollout calls it, with nulls where a benchmark has no such column.
    columns = {
        "benchmark": ["mini_choice", "mini_gsm", "mini_choice"],
        "gold": ["B", "19", "A"],
        "choices": [["a", "b"], None, ["a", "b"]],
        "numbers": [None, [12, 7], None],
        "trainer_state": object(),
    }
    answers = [r"\boxed{B}", r"\boxed{12+7}", r"\boxed{B}"]
    assert functions[0](["q"] * 3, answers, **columns) == [1.0, 0.0, 0.0]
    assert functions[0].rules == ["box"] * 3 and functions[1]([], [], benchmark=[]) == []
    only = rewards.training_functions(
        [MINI, CHOICE, registry.get("mini_corpus")], [*chosen, rewards.Choice("code_format")]
    )
    assert [function.__name__ for function in only[0]] == [*names, "mini_gsm+mini_choice+mini_corpus_code_format"]


def test_a_function_that_fits_one_of_two_benchmarks_answers_null_for_the_other():
    functions, _ = rewards.training_functions([MINI, CHOICE], [rewards.Choice("exact"), rewards.Choice("countdown")])
    columns = {"benchmark": ["mini_choice", "mini_gsm"], "gold": ["B", "19"], "numbers": [None, [12, 7]]}
    assert functions[1](["q"] * 2, [r"\boxed{B}", r"\boxed{12+7}"], **columns) == [None, 1.0]
    assert functions[1](["q"], ["<answer>7</answer>"], benchmark=["mini_choice"], gold=["B"]) == [None]
    with pytest.raises(SuiteError, match="column 'benchmark' is missing"):
        functions[0](["q"] * 2, ["a", "b"], gold=["B", "19"])


def test_where_no_scorer_says_exact_a_reward_does():
    class Puzzles(type(MINI)):
        name = "puzzles"
        not_scorable = "not yet"

    functions, weights = rewards.training_functions([Puzzles()], [rewards.Choice("countdown")])
    assert ([function.__name__ for function in functions], weights) == (["puzzles_countdown", "puzzles_exact"], [1, 0])
    texts = ["<answer>12+7</answer>", "<answer>19</answer>", ""]
    columns = {"gold": ["19"] * 3, "numbers": [[12, 7]] * 3}
    assert functions[0](["q"] * 3, texts, **columns) == [1.0, 0.1, 0.0]
    assert functions[1](["q"] * 3, texts, **columns) == [1.0, 0.0, 0.0]
    functions, weights = rewards.training_functions([Puzzles()], [rewards.Choice("code_format")])
    assert weights == [1.0], "nothing here knows a right answer"


def test_choices_that_pay_nothing_are_refused():
    with pytest.raises(SuiteError, match="reward 'sudoku': rows of mini_gsm have no column puzzle"):
        rewards.training_functions([MINI], [rewards.Choice("sudoku")])
    with pytest.raises(SuiteError, match="no reward pays for mini_choice"):
        rewards.training_functions([MINI, CHOICE], [rewards.Choice("countdown"), rewards.Choice("exact", 0)])
    with pytest.raises(SuiteError, match="reward 'countdown': format_score: 2"):
        rewards.training_functions([MINI], [rewards.Choice("countdown", 1, {"format_score": 2})])
    with pytest.raises(SuiteError, match="give one, or use benchmark"):
        rewards.get("exact")()
