"""Cost counters equal values counted by hand, and the rules of the decoding notes, section 8."""

from __future__ import annotations

import dataclasses

import pytest
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.cost import forward_flops, tokens_per_forward
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.families.dims import Dims
from dare_bench.dare.families.registry import get, get_family

PROMPT = [1, 2, 3, 4, 5]
# Both tiny models: 2 layers, width 32, 4 query and 2 key heads of 8, MLP 64, vocabulary 64.
LINEAR = 2 * (32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64)


def flops(queries: int, keys: int, outputs: int) -> float:
    return 2 * LINEAR * queries + 4 * 2 * 32 * queries * keys + 2 * 32 * 64 * outputs


@pytest.fixture
def decode(tiny, monkeypatch):
    """Decode PROMPT with 6 tokens in blocks of 4, one token per step, nothing ends the reply."""

    def run(family: str, **changes: object):
        lm = tiny(family)
        monkeypatch.setattr(lm, "stop_token_ids", set())
        decoder = DecoderConfig(gen_length=6, block_length=4, **changes)
        return generate(lm, [PROMPT], decoder, [0])[0]

    return run


def counters(cost) -> dict[str, float]:
    return {key: value for key, value in dataclasses.asdict(cost).items() if key != "wall_s"}


def table(forwards: list[tuple[int, int, int]]) -> dict[str, float]:
    """Counters of forwards given as (query positions, key positions, head rows)."""
    return {
        "nfe": len(forwards),
        "row_forwards": len(forwards),
        "positions_fed": sum(fed for fed, _, _ in forwards),
        "kv_read": sum(fed * keys for fed, keys, _ in forwards),
        "flops": sum(flops(*forward) for forward in forwards),
        "edits": 0,
    }


def test_full_attention(decode):
    # canvas 5 + 6 = 11; blocks of 4 and 2 masks; every forward feeds the canvas
    found = decode("llada")
    wanted = table([(11, 11, masks) for masks in (4, 3, 2, 1, 2, 1)])
    assert wanted | {"tokens_committed": 6, "tokens_text": 6} == counters(found.cost)
    assert found.kinds == ["denoise"] * 6
    assert (found.cost.nfe, found.cost.positions_fed, found.cost.kv_read) == (6, 66, 726)


def test_block_cache(decode):
    # grid of 4: canvas 12; block [4, 8) holds one prompt token and 3 masks, [8, 12) holds 4
    found = decode("sdar")
    first = [(8, 8, 3), (4, 8, 2), (4, 8, 1)]  # the first forward also stores [0, 4)
    second = [(8, 12, 4), (4, 12, 3), (4, 12, 2), (4, 12, 1)]  # and here [4, 8)
    assert table(first + second) | {"tokens_committed": 7, "tokens_text": 7} == counters(found.cost)
    assert found.kinds == ["prefill+denoise", "denoise", "denoise", "store+denoise", "denoise", "denoise", "denoise"]
    assert (found.cost.nfe, found.cost.positions_fed, found.cost.kv_read) == (7, 36, 368)
    assert found.block_starts == [0, 3]


def test_block_causal_without_a_cache(decode):
    found = decode("sdar", cache="none")
    wanted = table([(8, 8, n) for n in (3, 2, 1)] + [(12, 12, n) for n in (4, 3, 2, 1)])
    assert wanted | {"tokens_committed": 7, "tokens_text": 7} == counters(found.cost)
    assert set(found.kinds) == {"denoise"}


def test_fewer_steps(decode):
    # SDAR spreads the block's length over the steps, capped at the masks: 2 + 1, then 2 + 2
    found = decode("sdar", steps_per_block=2)
    assert counters(found.cost)["nfe"] == 4
    assert sorted(found.step_map) == [0, 0, 1, 2, 2, 3, 3]
    # LLaDA spreads the masks: 4 over 3 is 2 + 1 + 1, 2 over 3 is 1 + 1
    found = decode("llada", steps_per_block=3)
    assert sorted(found.step_map) == [0, 0, 1, 2, 3, 4]
    # more steps than positions: LLaDA's later steps are not run once nothing is masked
    assert decode("llada", steps_per_block=9).cost.nfe == 6


def test_tokens_text_stops_before_the_first_stop_token(tiny, monkeypatch):
    lm = tiny("sdar")
    monkeypatch.setattr(lm, "stop_token_ids", set())
    decoder = DecoderConfig(gen_length=6, block_length=4)
    whole = generate(lm, [PROMPT], decoder, [0])[0]
    stop = whole.token_ids[1]
    monkeypatch.setattr(lm, "stop_token_ids", {stop})
    (found,) = generate(lm, [PROMPT], decoder, [0])
    assert found.text_ids == whole.token_ids[: whole.token_ids.index(stop)]
    assert found.cost.tokens_text == len(found.text_ids) < found.cost.tokens_committed == 3
    assert (found.cost.nfe, found.finish_reason) == (3, "stop")


def test_a_row_that_waits_or_is_finished_pays_nothing(tiny, monkeypatch):
    lm = tiny("sdar")
    monkeypatch.setattr(lm, "stop_token_ids", set())
    decoder = DecoderConfig(gen_length=6, block_length=4)
    prompts = [PROMPT, [1, 2, 3, 4, 5, 6, 7], [9] * 16]
    together = generate(lm, prompts, decoder, [0] * 3)
    assert [generation.cost.nfe for generation in together] == [7, 9, 8]
    for prompt, generation in zip(prompts, together, strict=True):
        assert counters(generation.cost) == counters(generate(lm, [prompt], decoder, [0])[0].cost)


def test_wall_time_ends_with_the_row(tiny, monkeypatch):
    lm = tiny("sdar")
    monkeypatch.setattr(lm, "stop_token_ids", set())
    short, long = generate(lm, [[1], [1, 2, 3, 4, 5, 6, 7]], DecoderConfig(gen_length=3, block_length=4), [0, 0])
    assert 0 < short.cost.wall_s < long.cost.wall_s


def test_flops_of_llada_8b():
    # decoding notes, section 8: T = 1024 costs 14.3 + 0.55 (attention) + 1.06 (head) TFLOP, a dual window of 32 0.50
    dims = get_family("llada").dims(get("llada-8b-instruct").config)
    assert forward_flops(dims, 1024, 1024, 0) / 1e12 == pytest.approx(14.3 + 0.55, abs=0.01)
    assert (forward_flops(dims, 0, 0, 1024)) / 1e12 == pytest.approx(1.06, abs=0.005)
    assert forward_flops(dims, 32, 1024, 32) / 1e12 == pytest.approx(0.50, abs=0.005)


def test_flops_count_grouped_keys_and_wide_heads():
    dims = Dims(layers=1, hidden=4, heads=3, kv_heads=1, head_dim=2, mlp=5, vocab=7)
    linear = 4 * 6 + 4 * 2 * 2 + 6 * 4 + 3 * 4 * 5
    assert dims.linear == dims.layers * linear
    assert forward_flops(dims, 2, 9, 1) == 2 * linear * 2 + 4 * 6 * 2 * 9 + 2 * 4 * 7


def test_tokens_per_forward():
    assert tokens_per_forward(9, 4) == 2.25
    assert tokens_per_forward(0, 0) == 0.0
