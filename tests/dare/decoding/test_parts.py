"""Selectors, schedulers, cache policies and settings: their rules and what they refuse."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from dare_bench.dare.decoding import caches, selectors
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.families.registry import UnknownName


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (
            "low_confidense",
            {},
            UnknownName,
            r"unknown selector 'low_confidense'\. Did you mean 'low_confidence'\? Known: ",
        ),
        ("threshold", {}, ValueError, r"selector 'threshold' needs threshold, for example \{threshold: 0\.9\}"),
        (
            "threshold",
            {"treshold": 0.9},
            UnknownName,
            r"unknown option of selector 'threshold' 'treshold'\. Did you mea",
        ),
        ("random", {"threshold": 0.9}, UnknownName, r"option of selector 'random' 'threshold'\. Known: \(none\)\."),
        ("threshold", {"threshold": 0}, ValueError, r"threshold is 0; allowed: a number in \(0, 1\]"),
        ("threshold", {"threshold": 1.01}, ValueError, r"threshold is 1\.01; allowed: a number in \(0, 1\]"),
        ("threshold", {"threshold": float("nan")}, ValueError, r"threshold is nan; allowed"),
        ("threshold", {"threshold": "0.9"}, ValueError, r"threshold is '0\.9'; allowed: a number in \(0, 1\]"),
        ("threshold", {"threshold": True}, ValueError, r"threshold is True; allowed: a number in \(0, 1\]"),
    ],
)
def test_bad_selectors_are_refused_by_the_table_and_by_the_engine(tiny, name, options, error, message):
    with pytest.raises(error, match=message):
        selectors.resolve(name, options)
    decoder = DecoderConfig(gen_length=4, selector=name, selector_options=options)
    with pytest.raises(error, match=message):
        generate(tiny("sdar"), [[1]], decoder, [0])


@pytest.mark.parametrize("length", [None, 0, -3])
def test_gen_length_must_be_given(tiny, length):
    with pytest.raises(ValueError, match=rf"decoder\.gen_length is {length}; allowed: a positive number of tokens"):
        generate(tiny("llada"), [[1]], DecoderConfig(gen_length=length), [0])


def test_prompts_and_seeds(tiny):
    with pytest.raises(ValueError, match="prompt 1 is empty; a prompt needs at least one token"):
        generate(tiny("llada"), [[1], []], DecoderConfig(gen_length=4), [0, 0])
    with pytest.raises(ValueError, match="1 seeds for 2 prompts; give one per prompt"):
        generate(tiny("llada"), [[1], [2]], DecoderConfig(gen_length=4), [0])


@pytest.mark.parametrize(
    ("field", "value"),
    [("block_length", 0), ("block_length", -4), ("steps_per_block", 0), ("steps_per_block", -1), ("temperature", -0.5)],
)
def test_settings_out_of_range(tiny, field, value):
    decoder = dataclasses.replace(DecoderConfig(gen_length=4), **{field: value})
    with pytest.raises(ValueError, match=rf"decoder\.{field} is {value}; allowed: "):
        generate(tiny("sdar"), [[1]], decoder, [0])


def test_unknown_parts(tiny):
    with pytest.raises(
        UnknownName,
        match=r"unknown cache 'blocks'\. Did you mean 'block'\? Known: auto, block, dual, none, prefix, vicinity\.",
    ):
        generate(tiny("sdar"), [[1]], DecoderConfig(gen_length=4, cache="blocks"), [0])
    with pytest.raises(UnknownName, match=r"unknown scheduler 'even'\. Known: "):
        generate(tiny("sdar"), [[1]], DecoderConfig(gen_length=4, scheduler="even"), [0])
    with pytest.raises(
        ValueError, match=r"cache 'block' needs block-causal attention, family 'llada' has full attention; use 'auto'"
    ):
        generate(tiny("llada"), [[1]], DecoderConfig(gen_length=4, cache="block"), [0])


def test_automatic_cache(tiny):
    found = caches.policy("auto", tiny("sdar"))
    assert (found.name, found.keeps) == ("block", True)
    assert caches.policy("auto", tiny("llada")).name == "none"
    assert not caches.policy("none", tiny("sdar")).keeps


def test_position_cache_stores_by_position_and_keeps_other_rows(tiny):
    cache = caches.PositionCache(3, 6, tiny("sdar").model.config)

    def states(rows: int, slots: int, value: float) -> torch.Tensor:
        return torch.full((rows, 2, slots, 4), value)

    cache.aim(torch.arange(3), torch.tensor([[0, 1], [1, 2], [3, 4]]), 5)
    keys, values = cache.update(states(3, 2, 1.0), states(3, 2, -1.0), 0)
    assert keys.shape == (3, 2, 5, 4)
    assert keys[:, 0, :, 0].tolist() == [[1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 1]]
    assert torch.equal(values, -keys)
    cache.aim(torch.tensor([0, 2]), torch.tensor([[1], [5]]), 6)
    keys, values = cache.update(states(2, 1, 2.0), states(2, 1, -2.0), 0)
    assert keys[:, 1, :, 3].tolist() == [[1, 2, 0, 0, 0, 0], [0, 0, 0, 1, 1, 2]]
    assert cache.get_seq_length() == 6
    cache.aim(torch.arange(3), torch.tensor([[0], [0], [0]]), 3)
    keys, _ = cache.update(states(3, 1, 5.0), states(3, 1, 5.0), 0)
    assert keys[:, 0, :, 0].tolist() == [[5, 2, 0], [5, 1, 1], [5, 0, 0]]  # row 1 is as it was


def test_what_determines_a_result():
    one = DecoderConfig(name="a", selector="threshold", selector_options={"threshold": 0.9}, gen_length=8)
    assert dataclasses.replace(one, name="b").determinants() == one.determinants()
    assert "name" not in one.determinants()
    for field, value in {"selector": "random", "steps_per_block": 2, "temperature": 0.5, "early_stop": False}.items():
        assert dataclasses.replace(one, **{field: value}).determinants() != one.determinants()
    assert [config.draws for config in (one, DecoderConfig(selector="random"), DecoderConfig(temperature=1e-3))] == [
        False,
        True,
        True,
    ]
    assert DecoderConfig(**one.determinants()) == dataclasses.replace(one, name="default")
