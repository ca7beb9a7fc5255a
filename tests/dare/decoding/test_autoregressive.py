"""Left-to-right decoding: transformers' own greedy tokens, rows independent of their batch, honest counters."""

from __future__ import annotations

import functools

import pytest
import torch
from dare_bench.dare.decoding.autoregressive import generate
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.cost import forward_flops
from dare_bench.dare.families import loading
from hypothesis import given, settings
from hypothesis import strategies as st

VOCAB, EOS = 48, 47
CONFIGS = {
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": False},
}
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCAB, "eos_token_id": EOS, "rope_theta": 10000.0,
}  # fmt: skip


@functools.cache
def model(kind: str):
    lm = loading.from_config("autoregressive", CONFIGS[kind] | SIZES, seed=0, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in sorted(lm.model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            scale = 0.3 if "embed" in name else weight.shape[-1] ** -0.5
            weight.copy_(1 + 0.2 * noise if weight.dim() == 1 and "norm" in name else noise * scale * 2)
    return lm.eval()


def prompts_of(lengths: list[int]) -> list[list[int]]:
    return [[(7 * row + 3 * place + 1) % EOS for place in range(length)] for row, length in enumerate(lengths)]


@pytest.mark.parametrize("kind", CONFIGS)
def test_greedy_tokens_are_those_of_transformers(kind):
    lm = model(kind)
    prompts = prompts_of([1, 4, 9, 9, 17])
    found = generate(lm, prompts, DecoderConfig(gen_length=12), [0] * 5, batch_size=3)
    for prompt, one in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt])
        options = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": EOS, "pad_token_id": 0}
        expected = lm.model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :]
        assert one.token_ids == expected.tolist()
    assert len({tuple(one.token_ids) for one in found}) > 1  # there is something to compare


@given(
    kind=st.sampled_from(sorted(CONFIGS)),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    early_stop=st.booleans(),
    batch_size=st.integers(1, 6),
)
@settings(max_examples=40, deadline=None)
def test_rows_equal_their_single_runs(kind, lengths, temperature, early_stop, batch_size, assert_same):
    lm = model(kind)
    prompts, seeds = prompts_of(lengths), [100 + 17 * row for row in range(len(lengths))]
    decoder = DecoderConfig(gen_length=9, temperature=temperature, early_stop=early_stop)
    together = generate(lm, prompts, decoder, seeds, batch_size=batch_size)
    for prompt, seed, one in zip(prompts, seeds, together, strict=True):
        assert_same(one, generate(lm, [prompt], decoder, [seed])[0])


def test_sampling_follows_the_distribution_and_the_seed():
    lm = model("qwen3")
    prompt = prompts_of([5])[0]
    with torch.inference_mode():
        probabilities = lm.logits(torch.tensor([prompt]), aligned=False)[0, -1].softmax(-1)
    drawn = generate(lm, [prompt] * 4000, DecoderConfig(gen_length=1, temperature=1.0), range(4000), batch_size=2000)
    counts = torch.bincount(torch.tensor([one.token_ids[0] for one in drawn]), minlength=VOCAB) / 4000
    assert float((counts - probabilities).abs().sum()) < 0.12  # total variation of 4000 draws over 48 tokens
    one = drawn[7]
    assert one.confidence[0] == pytest.approx(float(probabilities[one.token_ids[0]]), abs=1e-6)


def test_counters():
    lm = model("qwen2")
    prompt = prompts_of([6])[0]
    one = generate(lm, [prompt], DecoderConfig(gen_length=5, early_stop=False), [0])[0]
    assert one.kinds == ["prefill+decode", "decode", "decode", "decode", "decode"]
    assert one.step_map == [0, 1, 2, 3, 4] and one.block_starts == [0]
    assert (one.cost.nfe, one.cost.row_forwards, one.cost.tokens_committed) == (5, 5, 5)
    assert one.cost.positions_fed == 6 + 4
    assert one.cost.kv_read == 21 + 7 + 8 + 9 + 10
    dims = lm.dims
    linear = 2 * dims.linear * 10 + 5 * 2 * dims.hidden * dims.vocab
    assert one.cost.flops == pytest.approx(linear + 4 * dims.layers * dims.heads * dims.head_dim * one.cost.kv_read)
    assert one.cost.flops > forward_flops(dims, 6, 6, 1)
    assert one.cost.wall_s > 0


def test_a_row_ends_with_its_first_stop_token():
    lm = model("qwen3")
    prompts = prompts_of(list(range(1, 30)))
    long = generate(lm, prompts, DecoderConfig(gen_length=60, temperature=2.0, early_stop=False), range(29))
    short = generate(lm, prompts, DecoderConfig(gen_length=60, temperature=2.0), range(29))
    assert {one.finish_reason for one in short} == {"stop", "length"}
    for one, other in zip(short, long, strict=True):
        assert len(other.token_ids) == 60
        assert one.text_ids == other.text_ids and one.finish_reason == other.finish_reason
        assert one.token_ids == other.token_ids[: len(one.token_ids)]
        if one.finish_reason == "stop":
            assert one.token_ids[-1] == EOS and EOS not in one.token_ids[:-1]
            assert one.cost.tokens_text == len(one.token_ids) - 1 == one.cost.nfe - 1


def test_finished_rows_are_reported_once_and_bad_requests_are_refused():
    lm = model("qwen2")
    seen = []
    generate(
        lm,
        prompts_of([3, 1, 2]),
        DecoderConfig(gen_length=2),
        [0, 1, 2],
        batch_size=2,
        on_finish=lambda index, one: seen.append((index, len(one.token_ids))),
    )
    assert sorted(index for index, _ in seen) == [0, 1, 2]
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        generate(lm, [[1], []], DecoderConfig(gen_length=2), [0, 1])
    with pytest.raises(ValueError, match="gen_length"):
        generate(lm, [[1]], DecoderConfig(), [0])
    with pytest.raises(ValueError, match="1 seeds for 2 prompts"):
        generate(lm, [[1], [2]], DecoderConfig(gen_length=1), [0])
