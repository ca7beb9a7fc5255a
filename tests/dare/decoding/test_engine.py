"""The engine's laws: rows are independent, the cache is exact, nothing is committed twice or as a mask."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from dare_bench.dare.decoding import predict
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.decoding.trajectory import state_at, states
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

MASK, EOS = 63, 62
LAWS = settings(deadline=None, max_examples=40, derandomize=True)
SELECTORS = st.sampled_from([("low_confidence", {}), ("random", {}), ("threshold", {"threshold": 0.25})])


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return [(salt * 13 + 7 * place) % 60 for place in range(length)]


@st.composite
def decoders(draw: st.DrawFn, **fixed: object) -> DecoderConfig:
    selector, options = draw(SELECTORS)
    values = {
        "selector": selector,
        "selector_options": options,
        "gen_length": draw(st.integers(1, 13)),
        "block_length": draw(st.sampled_from([None, 1, 2, 3, 5, 8])),
        "steps_per_block": draw(st.sampled_from([None, 1, 2, 3, 9])),
        "temperature": draw(st.sampled_from([0.0, 0.7])),
        "early_stop": draw(st.booleans()),
    }
    return DecoderConfig(**(values | fixed))


PROMPTS = st.lists(st.integers(1, 11), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def often_stopping(tiny):
    """Models in which one token of thirteen ends the reply."""
    found = {}
    for family in ("llada", "sdar"):
        found[family] = copy.copy(tiny(family))
        found[family].stop_token_ids = {3, 17, 31, 44, EOS}
    return found


@LAWS
@given(
    st.sampled_from([("llada", "none"), ("sdar", "none"), ("sdar", "block")]),
    decoders(),
    PROMPTS,
    st.integers(1, 6),
    st.booleans(),
)
def test_rows_of_a_batch_equal_single_runs(often_stopping, assert_same, mode, decoder, lengths, batch_size, flip):
    family, cache = mode
    lm, decoder = often_stopping[family], dataclasses.replace(decoder, cache=cache)
    prompts = [prompt_of(length, row) for row, length in enumerate(lengths)]
    seeds = [100 + row for row in range(len(prompts))]
    alone = [generate(lm, [prompt], decoder, [seed])[0] for prompt, seed in zip(prompts, seeds, strict=True)]
    order = range(len(prompts))[:: -1 if flip else 1]
    together = generate(lm, [prompts[i] for i in order], decoder, [seeds[i] for i in order], batch_size=batch_size)
    for index, generation in zip(order, together, strict=True):
        assert_same(generation, alone[index])


@LAWS
@given(decoders(), PROMPTS)
def test_cached_blocks_equal_recomputation(often_stopping, decoder, lengths):
    lm = often_stopping["sdar"]
    prompts = [prompt_of(length, row) for row, length in enumerate(lengths)]
    seeds = list(range(len(prompts)))
    cached, plain = (
        generate(lm, prompts, dataclasses.replace(decoder, cache=cache), seeds) for cache in ("block", "none")
    )
    for one, two in zip(cached, plain, strict=True):
        assert (one.token_ids, one.step_map) == (two.token_ids, two.step_map)
        assert one.confidence == pytest.approx(two.confidence, abs=2e-6)
        assert (one.cost.nfe, one.cost.tokens_committed) == (two.cost.nfe, two.cost.tokens_committed)
        assert one.cost.positions_fed <= two.cost.positions_fed
        assert one.cost.flops <= two.cost.flops


@LAWS
@given(st.sampled_from(["llada", "sdar"]), decoders(), st.integers(1, 11))
def test_structure_of_a_generation(often_stopping, family, decoder, length):
    lm = often_stopping[family]
    block = decoder.block_length or lm.block_length
    (found,) = generate(lm, [prompt_of(length)], decoder, [5])
    assert MASK not in found.token_ids
    assert len(found.token_ids) == len(found.step_map) == len(found.confidence) == found.cost.tokens_committed
    assert (
        min(found.step_map) >= 0 and max(found.step_map) < found.cost.nfe == len(found.kinds) == found.cost.row_forwards
    )
    assert all(0 < value <= 1 for value in found.confidence)
    # blocks are decoded one after the other, on the family's grid
    grid = length % block if family == "sdar" else 0
    wanted = [0, *range(block - grid, len(found.token_ids), block)]
    assert found.block_starts == wanted
    bounds = [*found.block_starts, len(found.token_ids)]
    for before, start, after in zip(bounds, bounds[1:], bounds[2:], strict=False):
        assert max(found.step_map[before:start]) < min(found.step_map[start:after])
    stops = [place for place, token in enumerate(found.token_ids) if token in lm.stop_token_ids]
    first = stops[0] if stops else len(found.token_ids)
    assert found.text_ids == found.token_ids[:first]
    assert found.cost.tokens_text == first
    assert found.finish_reason == ("stop" if stops else "length")
    if not (stops and decoder.early_stop):
        total = decoder.gen_length if family == "llada" else -(-(length + decoder.gen_length) // block) * block - length
        assert len(found.token_ids) == total
    else:  # the block of the first stop token is the last one
        assert found.block_starts[-1] <= first


@LAWS
@given(st.sampled_from(["llada", "sdar"]), decoders(), PROMPTS)
def test_early_stop_changes_no_text(often_stopping, family, decoder, lengths):
    lm = often_stopping[family]
    prompts = [prompt_of(length, row) for row, length in enumerate(lengths)]
    early, late = (
        generate(lm, prompts, dataclasses.replace(decoder, early_stop=flag), list(range(len(prompts))))
        for flag in (True, False)
    )
    for one, two in zip(early, late, strict=True):
        assert (one.text_ids, one.finish_reason) == (two.text_ids, two.finish_reason)
        assert one.token_ids == two.token_ids[: len(one.token_ids)]
        assert one.step_map == two.step_map[: len(one.step_map)]
        assert one.cost.nfe <= two.cost.nfe


@LAWS
@given(st.sampled_from(["llada", "sdar"]), decoders(), st.integers(1, 11))
def test_the_step_map_rebuilds_the_input_of_every_forward(often_stopping, family, decoder, length):
    lm = copy.copy(often_stopping[family])
    seen, hidden = [], lm.hidden

    def spy(ids, **options):
        seen.append((ids[0].tolist(), options["position_ids"][0].tolist()))
        return hidden(ids, **options)

    lm.hidden = spy
    prompt = prompt_of(length)
    (found,) = generate(lm, [prompt], decoder, [5])
    assert len(seen) == found.cost.nfe
    for step, (ids, places) in enumerate(seen):
        canvas = prompt + state_at(found.token_ids, found.step_map, step, MASK)
        canvas += [MASK] * 20  # what was never decoded
        assert ids == [canvas[place] for place in places]
    history = list(states(found.token_ids, found.step_map, MASK))
    assert len(history) == max(found.step_map) + 2
    assert history[0] == [MASK] * len(found.token_ids)
    assert history[-1] == found.token_ids
    assert sum(len(ids) for ids, _ in seen) == found.cost.positions_fed


def test_states_of_a_position_that_was_never_committed():
    assert state_at([5, 6, 7], [1, -1, 0], 1, 9) == [9, 9, 7]
    assert list(states([5, 6], [-1, -1], 9)) == [[9, 9]]
    with pytest.raises(ValueError, match="shorter"):
        state_at([5, 6], [0], 0, 9)


@pytest.mark.parametrize("family", ["llada", "sdar"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_id_that_wins_is_never_committed(tiny, family, temperature):
    lm = copy.deepcopy(tiny(family))
    canvas = torch.tensor([prompt_of(6) + [MASK] * 10])
    with torch.no_grad():
        lm.head_weight[MASK] = 100 * lm.hidden(canvas)[0].mean(0)
        assert (lm.logits(canvas)[0, 6:].argmax(-1) == MASK).any()
    decoder = DecoderConfig(gen_length=10, temperature=temperature)
    (found,) = generate(lm, [prompt_of(6)], decoder, [0])
    assert MASK not in found.token_ids
    assert min(found.confidence) < 1e-3  # the mask id stays in the softmax


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_a_confidence_equal_to_the_threshold(tiny, family):
    # Fast-dLLM (LLaDA) compares with >=, SDAR with >
    lm = copy.deepcopy(tiny(family))
    with torch.no_grad():
        lm.head_weight.mul_(1e4)
    lm.stop_token_ids = set()
    decoder = DecoderConfig(selector="threshold", selector_options={"threshold": 1.0}, gen_length=4, block_length=4)
    (found,) = generate(lm, [prompt_of(4)], decoder, [0])
    assert found.confidence == [1.0] * 4
    assert found.cost.nfe == (4 if family == "sdar" else 1)


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_mask_and_stop_ids_inside_the_prompt_are_prompt(often_stopping, family):
    lm = often_stopping[family]
    prompt = [MASK, 3, 17, EOS, MASK, 1]
    (found,) = generate(lm, [prompt], DecoderConfig(gen_length=8), [0])
    assert len(found.token_ids) == found.cost.tokens_committed
    assert (found.finish_reason == "stop") == bool(lm.stop_token_ids & set(found.token_ids))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_other_storage_types(tiny, family, dtype):
    lm = tiny(family, dtype=dtype)
    prompts = [prompt_of(5, row) for row in range(3)]
    found = generate(lm, prompts, DecoderConfig(gen_length=9), [0, 0, 0], batch_size=2)
    for generation in found:
        assert len(generation.text_ids) <= len(generation.token_ids)
        assert MASK not in generation.token_ids


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_head_chunks_change_nothing(tiny, monkeypatch, assert_same, family):
    prompts, decoder = [prompt_of(4, row) for row in range(4)], DecoderConfig(gen_length=9, temperature=0.9)
    whole = generate(tiny(family), prompts, decoder, [1, 2, 3, 4])
    monkeypatch.setattr(predict, "HEAD_ROWS", 3)
    for one, two in zip(generate(tiny(family), prompts, decoder, [1, 2, 3, 4]), whole, strict=True):
        assert_same(one, two)


@pytest.mark.parametrize(("temperature", "selector"), [(1.0, "low_confidence"), (0.0, "random")])
def test_seeds_decide_draws_and_nothing_else(tiny, assert_same, temperature, selector):
    lm, decoder = tiny("llada"), DecoderConfig(gen_length=12, temperature=temperature, selector=selector)
    one, again, other = (generate(lm, [prompt_of(5)], decoder, [seed])[0] for seed in (1, 1, 2))
    assert_same(one, again)
    assert one.step_map != other.step_map
    greedy = dataclasses.replace(decoder, temperature=0.0, selector="low_confidence")
    assert not greedy.draws and decoder.draws
    assert_same(*(generate(lm, [prompt_of(5)], greedy, [seed])[0] for seed in (1, 2)))


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_sampled_tokens_follow_the_softmax(tiny, temperature):
    lm, count = tiny("llada"), 4000
    prompt = prompt_of(6)
    decoder = DecoderConfig(gen_length=1, temperature=temperature)
    found = generate(lm, [prompt] * count, decoder, list(range(count)), batch_size=500)
    logits = lm.logits(torch.tensor([[*prompt, MASK]])).detach()[0, -1]
    confidence = logits.softmax(-1)
    logits[MASK] = -torch.inf
    expected = (logits / temperature).softmax(-1) * count
    seen = torch.bincount(torch.tensor([generation.token_ids[0] for generation in found]), minlength=64).double()
    common = expected >= 5
    rest = torch.stack([seen[~common].sum(), expected[~common].sum()])
    observed, wanted = torch.cat([seen[common], rest[:1]]), torch.cat([expected[common], rest[1:]])
    assert int(common.sum()) > 3
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    assert statistic < chi2.ppf(0.999, len(observed) - 1)
    for generation in found[:20]:  # confidence is that of the noise-free softmax at temperature 1
        assert generation.confidence[0] == pytest.approx(float(confidence[generation.token_ids[0]]), abs=1e-6)


def test_random_selection_is_uniform_over_the_block(tiny):
    count = 2000
    decoder = DecoderConfig(gen_length=8, block_length=8, steps_per_block=8, selector="random", early_stop=False)
    found = generate(tiny("llada"), [prompt_of(3)] * count, decoder, list(range(count)), batch_size=500)
    first = torch.bincount(torch.tensor([generation.step_map.index(0) for generation in found]), minlength=8).double()
    assert float(((first - count / 8) ** 2 / (count / 8)).sum()) < chi2.ppf(0.999, 7)
    assert len({tuple(generation.step_map) for generation in found}) > 1800  # of 8! orders


def test_results_are_reported_once_and_in_order(tiny):
    prompts = [prompt_of(length, length) for length in (7, 2, 9, 4, 2)]
    reported = {}
    found = generate(
        tiny("sdar"), prompts, DecoderConfig(gen_length=4), [0] * 5, batch_size=2, on_finish=reported.__setitem__
    )
    assert reported == dict(enumerate(found))
    assert list(reported)[:2] == [0, 2]  # the longest prompts come first and share a batch
    assert generate(tiny("sdar"), [], DecoderConfig(gen_length=4), []) == []
