"""The engine's laws in every mode: caches, selectors, schedulers, editors, guidance, end rules, families with a shift."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter

import pytest
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import Session, generate
from hypothesis import given, settings
from hypothesis import strategies as st

MASK, EOS = 63, 62
LAWS = settings(deadline=None, max_examples=40, derandomize=True)
FULL = ("llada", "dream", "llada_moe")
BLOCK = ("sdar", "llada2_moe")
SELECTORS = (
    ("low_confidence", {}),
    ("random", {}),
    ("threshold", {"threshold": 0.3}),
    ("factor", {"factor": 0.8}),
    ("topk_margin", {}),
    ("entropy", {}),
    ("maskgit_plus", {"alg_temp": 0.5}),
    ("entropy_bounded", {"threshold": 2.0}),
    ("eb", {"gamma": 2.0}),
    ("hierarchy", {"threshold": 0.6, "low_threshold": 0.2}),
    ("sequential", {}),
    ("origin", {}),
)


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return [(salt * 13 + 7 * place) % 60 for place in range(length)]


@st.composite
def decoders(draw: st.DrawFn, family: str) -> DecoderConfig:
    selector, options = draw(st.sampled_from(SELECTORS))
    is_block = family in BLOCK
    caches = ["auto", "none", "block"] if is_block else ["none", "prefix", "dual", "vicinity"]
    cache = draw(st.sampled_from(caches))
    scheduler = draw(st.sampled_from(["quota", "timesteps", "cumulative"] + ([] if is_block else ["ass"])))
    weighting = draw(st.sampled_from(["none", "none", "eoser", "credit"]))
    edits = is_block and draw(st.booleans())
    return DecoderConfig(
        selector=selector,
        selector_options=options,
        scheduler=scheduler,
        scheduler_options={"blocks": draw(st.integers(1, 2))} if scheduler == "ass" else {},
        gen_length=draw(st.integers(4, 14)),
        block_length=draw(st.sampled_from([None, 2, 3, 5])),
        steps_per_block=draw(st.sampled_from([None, 1, 2, 3])),
        cache=cache,
        cache_options={"prefix_look": 2, "after_look": 3, "warmup_steps": 2} if cache == "vicinity" else {},
        editor="token_editing" if edits else "none",
        editor_options={"threshold": 0.4, "max_post_steps": 2} if edits else {},
        weighting=weighting,
        temperature=draw(st.sampled_from([0.0, 0.0, 0.8])),
        top_p=draw(st.sampled_from([None, None, 0.9])),
        top_k=draw(st.sampled_from([None, None, 5])),
        confidence=draw(st.sampled_from(["plain", "filtered"])),
        cfg_scale=draw(st.sampled_from([0.0, 0.0, 1.5])),
        eos_rule=draw(st.sampled_from(["plain", "never", "last"])),
        early_stop=draw(st.sampled_from([False, True, "fill", "now"])),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, DecoderConfig, list[int], int, bool]:
    family = draw(st.sampled_from(FULL + BLOCK))
    lengths = draw(st.lists(st.integers(1, 11), min_size=1, max_size=8))
    return family, draw(decoders(family)), lengths, draw(st.integers(1, 8)), draw(st.booleans())


@pytest.fixture(scope="module")
def models(tiny):
    """Models in which one token of thirteen ends the reply."""
    found = {}
    for family in FULL + BLOCK:
        found[family] = copy.copy(tiny(family))
        found[family].stop_token_ids = {3, 17, 31, 44, EOS}
    return found


@settings(deadline=None, max_examples=120, derandomize=True)
@given(cases())
def test_rows_equal_single_runs_whatever_the_batch_and_order(models, assert_same, case):
    family, decoder, lengths, batch_size, flip = case
    lm = models[family]
    prompts = [prompt_of(length, row) for row, length in enumerate(lengths)]
    seeds = [100 + row for row in range(len(prompts))]
    alone = [generate(lm, [prompt], decoder, [seed])[0] for prompt, seed in zip(prompts, seeds, strict=True)]
    order = range(len(prompts))[:: -1 if flip else 1]
    together = generate(lm, [prompts[i] for i in order], decoder, [seeds[i] for i in order], batch_size=batch_size)
    for index, generation in zip(order, together, strict=True):
        assert_same(generation, alone[index])
        assert generation.edits == alone[index].edits


@settings(deadline=None, max_examples=80, derandomize=True)
@given(cases())
def test_step_maps_are_a_partition_and_costs_add_up(models, case):
    family, decoder, lengths, batch_size, _ = case
    lm = models[family]
    prompts = [prompt_of(length, row) for row, length in enumerate(lengths)]
    for generation in generate(lm, prompts, decoder, range(len(prompts)), batch_size=batch_size):
        committed = [when for when in generation.step_map if when >= 0]
        assert MASK not in [t for t, when in zip(generation.token_ids, generation.step_map, strict=True) if when >= 0]
        assert all(-2 <= when < generation.cost.nfe for when in generation.step_map)
        assert len(generation.kinds) == generation.cost.nfe
        assert not {"prefill", "store", "wasted"} & set(generation.kinds)
        assert generation.cost.tokens_committed == len(committed)
        if decoder.early_stop is False:
            assert len(committed) == len(generation.token_ids)
        if decoder.early_stop != "fill":
            assert -2 not in generation.step_map
        if decoder.early_stop != "now":
            assert -1 not in generation.step_map
        assert generation.cost.edits == len(generation.edits)
        assert all(generation.step_map[place] <= forward for forward, place, _, _ in generation.edits)
        assert generation.cost.row_forwards == generation.cost.nfe * (2 if decoder.cfg_scale else 1)


@LAWS
@given(st.sampled_from(BLOCK + FULL), st.data())
def test_published_loops_take_no_fewer_forwards(models, family, data):
    decoder = data.draw(decoders(family))
    compat = {"separate_store": {}} if family in BLOCK else {"extra_forward": {}}
    cache = "block" if family in BLOCK else data.draw(st.sampled_from(["prefix", "dual"]))
    ours = dataclasses.replace(decoder, cache=cache, cache_options={}, temperature=0.0, early_stop=False)
    if ours.selector in ("random", "origin", "maskgit_plus"):  # drawn per forward: other forwards, other draws
        ours = dataclasses.replace(ours, selector="low_confidence", selector_options={})
    prompts = [prompt_of(length, length) for length in (1, 4, 9)]
    rule = generate(models[family], prompts, ours, [0, 1, 2])
    published = generate(models[family], prompts, dataclasses.replace(ours, compat=compat), [0, 1, 2])
    for one, other in zip(rule, published, strict=True):
        assert one.token_ids == other.token_ids
        assert one.cost.nfe <= other.cost.nfe
        assert one.cost.nfe == sum("denoise" in kind for kind in other.kinds)


def test_a_finished_row_costs_nothing_and_its_place_is_taken(models, monkeypatch):
    lm = models["sdar"]
    decoder = DecoderConfig(gen_length=24, selector="threshold", selector_options={"threshold": 0.3})
    prompts = [prompt_of(3 + row % 5, row) for row in range(12)]
    fed = []
    hidden = type(lm).hidden
    monkeypatch.setattr(lm, "hidden", lambda ids, **more: (fed.append(len(ids)), hidden(lm, ids, **more))[1])
    session = Session(lm, decoder, 4)
    for row, prompt in enumerate(prompts):
        session.add(prompt, row, row)
    found, running = {}, []
    while session.busy:
        found |= dict(session.step())
        running.append(session.slots.running)
    assert sorted(found) == list(range(12))
    assert sum(fed) == sum(generation.cost.nfe for generation in found.values())  # no row is fed that is not decoded
    assert max(fed) == 4
    # Slots are refilled as long as anything waits: the batch is full until the queue is empty.
    assert running[: len(running) // 2] == [4] * (len(running) // 2) or min(running[: len(running) // 2]) >= 3


def test_prompts_may_come_and_go_while_others_run(models, assert_same):
    lm, decoder = models["dream"], DecoderConfig(gen_length=10, cache="dual", block_length=5, early_stop=False)
    expected = generate(lm, [prompt_of(n, n) for n in (4, 7, 30)], decoder, [0, 1, 2], batch_size=1)
    session = Session(lm, decoder, 2)
    session.add(prompt_of(4, 4), 0, "short")
    session.add(prompt_of(9, 1), 5, "dropped")
    session.step()
    session.step()
    assert session.cancel("dropped")
    assert not session.cancel("dropped")
    session.add(prompt_of(7, 7), 1, "late")
    session.add(prompt_of(30, 30), 2, "long")  # wider than anything before: buffers and cache grow
    found = {}
    while session.busy:
        found |= dict(session.step())
    for key, generation in zip(("short", "late", "long"), expected, strict=True):
        assert_same(found[key], generation)


@pytest.mark.parametrize("family", FULL)
def test_the_dual_cache_is_exact_when_nothing_outside_the_block_can_change(tiny, family):
    """One block: the window is the whole generation and the prompt does not change, but its states do (full attention)."""
    lm = tiny(family)
    plain = DecoderConfig(gen_length=8, block_length=8, early_stop=False, steps_per_block=1)
    once = generate(lm, [prompt_of(5)], plain, [0])[0]
    cached = generate(lm, [prompt_of(5)], dataclasses.replace(plain, cache="dual"), [0])[0]
    assert once.token_ids == cached.token_ids
    assert (once.cost.nfe, cached.cost.nfe) == (1, 1)


def test_prefix_cache_feeds_less(tiny):
    lm = tiny("llada")
    base = DecoderConfig(gen_length=16, block_length=4, early_stop=False)
    costs = {
        cache: generate(lm, [prompt_of(12)], dataclasses.replace(base, cache=cache), [0])[0].cost
        for cache in ("none", "prefix", "dual")
    }
    assert {cost.nfe for cost in costs.values()} == {16}
    assert costs["none"].positions_fed == 16 * 28
    assert costs["prefix"].positions_fed == 4 * 28 + 3 * (16 + 12 + 8 + 4)
    assert costs["dual"].positions_fed == 4 * 28 + 12 * 4
    assert costs["none"].flops > costs["prefix"].flops > costs["dual"].flops


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llada", {"cache": "block"}, "cache 'block' needs block-causal attention"),
        ("sdar", {"cache": "dual"}, "cache 'dual' needs full attention"),
        ("llada", {"editor": "token_editing", "editor_options": {"threshold": 0.5}}, "needs block-causal attention"),
        ("sdar", {"editor": "token_editing"}, "editor 'token_editing' needs threshold"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tiny, family, changes, message):
    decoder = DecoderConfig(gen_length=4, **changes)
    with pytest.raises(ValueError, match=message):
        generate(tiny(family), [[1, 2]], decoder, [0])


def test_eos_rules(tiny):
    lm = copy.copy(tiny("llada"))
    base = DecoderConfig(gen_length=12, early_stop=False)
    prompts, seeds = [prompt_of(5, row) for row in range(6)], range(6)
    usual = Counter(token for found in generate(lm, prompts, base, seeds) for token in found.token_ids)
    lm.eos_token_id = end = usual.most_common(1)[0][0]  # what this model likes to say ends the text
    lm.stop_token_ids = {end, 61}

    def count(decoder: DecoderConfig) -> int:
        return sum(generation.token_ids.count(end) for generation in generate(lm, prompts, decoder, seeds))

    plain = count(base)
    assert plain > 0
    assert count(dataclasses.replace(base, eos_rule="never")) == 0
    last = generate(lm, prompts, dataclasses.replace(base, eos_rule="last"), seeds)
    for generation in last:  # an end token is only committed once nothing else is left to commit
        ends = [when for token, when in zip(generation.token_ids, generation.step_map, strict=True) if token == end]
        assert not ends or min(ends) > 0
