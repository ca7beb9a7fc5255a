"""Tokenisation, the order of examples, padding and mixtures."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from dare_bench.dare.training.data import Encoded, TooLong, collate, encode, order
from dare_bench.dare.training.mixture import Mixture, Phase
from hypothesis import given
from hypothesis import strategies as st

EXAMPLE = {
    "id": "q1",
    "prompt": [{"role": "user", "content": "2 + 2 ="}],
    "completion": "4",
    "answer": "4",
    "source": "sums",
}


class TestEncode:
    @pytest.mark.parametrize("family", ["llada", "sdar"])
    def test_reply_ends_with_the_family_s_token(self, tiny, family):
        lm = tiny(family)
        (row,) = encode(lm, [EXAMPLE], max_length=64)
        assert row.prompt == lm.encode_chat(EXAMPLE["prompt"])
        assert lm.decode(row.response) == "4"
        end = lm.tokenizer.convert_tokens_to_ids(lm.family.reply_end)
        assert row.response[-1] == end
        assert end in lm.stop_token_ids
        assert row.id == "q1"
        assert row.columns == {"answer": "4", "source": "sums"}

    def test_prompts_alone(self, tiny):
        (row,) = encode(tiny("sdar"), [{key: EXAMPLE[key] for key in ("id", "prompt")}], max_length=64)
        assert row.response == []

    def test_too_long_names_example_and_lengths(self, tiny):
        lm = tiny("llada")
        assert len(encode(lm, [EXAMPLE], max_length=9)) == 1
        with pytest.raises(TooLong, match=r"'q1' has 7 \+ 2 tokens, max_length is 8; raise max_length"):
            encode(lm, [EXAMPLE], max_length=8)

    def test_completion_may_hold_no_special_tokens_of_its_own(self, tiny):
        lm = tiny("llada")
        (row,) = encode(lm, [EXAMPLE | {"completion": "a\nb"}], max_length=64)
        assert not set(row.response[:-1]) & lm.stop_token_ids


class TestOrder:
    @given(
        count=st.integers(1, 20), size=st.integers(1, 30), epochs=st.integers(1, 3), seed=st.integers(0, 9)
    )  # fmt: skip
    def test_every_epoch_is_a_permutation(self, count, size, epochs, seed):
        stream: list[int] = []
        while len(stream) < count * epochs:
            stream += order(count, seed=seed, start=len(stream), size=size)
        for epoch in range(epochs):
            assert sorted(stream[epoch * count : (epoch + 1) * count]) == list(range(count))

    def test_the_stream_does_not_depend_on_how_it_is_cut(self):
        whole = order(7, seed=1, start=0, size=30)
        assert [i for start in range(30) for i in order(7, seed=1, start=start, size=1)] == whole
        assert order(7, seed=1, start=11, size=9) == whole[11:20]

    def test_seeds_and_epochs_differ(self):
        assert order(20, seed=1, start=0, size=20) != order(20, seed=2, start=0, size=20)
        assert order(20, seed=1, start=0, size=20) != order(20, seed=1, start=20, size=20)


class TestCollate:
    rows = (Encoded("a", [1, 2, 3], [4, 5], {}), Encoded("b", [6], [7, 8, 9, 10, 11, 12, 13], {}))

    def test_full_attention_fills_all_rows_and_counts_the_fill(self, tiny):
        lm = tiny("llada", text=False)
        batch = collate(lm, self.rows)
        assert batch.ids.tolist() == [[1, 2, 3, 4, 5, 62, 62, 62], [6, 7, 8, 9, 10, 11, 12, 13]]
        assert batch.lengths.tolist() == [8, 8]
        assert batch.counted.long().tolist() == [[0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1]]
        assert torch.equal(batch.counted, batch.response)
        assert batch.real.all()
        assert batch.block_length == 0
        assert batch.sample_ids == ["a", "b"]

    def test_blocks_fill_to_the_block_and_no_further(self, tiny):
        lm = tiny("sdar", text=False)
        rows = (*self.rows, Encoded("c", [1], [2], {}))
        batch = collate(lm, rows, uids=["x", "y", "z"])
        assert batch.lengths.tolist() == [8, 8, 4]
        assert batch.ids[2].tolist() == [1, 2, 62, 62, 62, 62, 62, 62]
        assert batch.counted[2].long().tolist() == [0, 1, 1, 1, 0, 0, 0, 0]
        assert batch.real[2].long().tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
        assert batch.block_length == 4
        assert batch.sample_ids == ["x", "y", "z"]

    def test_extra_blocks(self, tiny):
        sdar = collate(tiny("sdar", text=False), self.rows, extra_blocks=[2, 0])
        assert sdar.lengths.tolist() == [16, 8]
        llada = collate(tiny("llada", text=False), self.rows, extra_blocks=[0, 1])
        assert llada.lengths.tolist() == [12, 12]
        assert llada.counted.sum(1).tolist() == [9, 11]

    @pytest.mark.parametrize("block", [3, 7, 49, 93])
    def test_widths_are_exact_for_any_block_length(self, tiny, block):
        """A width computed as length / block x block in floating point is one short for 1 / 49."""
        lm = tiny("llada", text=False, block=block)
        for length in (1, 2, 5, 11, 46, 47):
            assert collate(lm, [Encoded("a", [1], [2] * (length - 1), {})]).ids.shape == (1, length)


SOURCES = {"a": [0, 1, 2], "b": [3, 4], "c": [5]}


class TestMixture:
    def test_without_phases_every_epoch_holds_every_example_once(self):
        mixture = Mixture(SOURCES)
        picked = [i for step in range(3) for i in mixture.pick(seed=0, step=step, total_steps=3, size=4)]
        assert sorted(picked[:6]) == sorted(picked[6:]) == list(range(6))

    def test_phases_follow_the_share_of_the_run(self):
        phases = [Phase(0.25, {"a": 1.0}), Phase(0.5, {"b": 3.0, "c": 1.0}), Phase(1.0, {"c": 2.0})]
        mixture = Mixture(SOURCES, phases)
        counts = [Counter(mixture.pick(seed=1, step=step, total_steps=8, size=4000)) for step in range(8)]
        assert all(set(count) == {0, 1, 2} for count in counts[:2])
        assert all(set(count) == {3, 4, 5} for count in counts[2:4])
        assert all(set(count) == {5} for count in counts[4:])
        # 3 : 1, so c gets a quarter: 1000 of 4000, standard error 27.
        assert abs(counts[2][5] - 1000) < 120
        assert abs(counts[2][3] - 1500) < 140

    def test_picks_depend_on_seed_and_step_only(self):
        mixture = Mixture(SOURCES, [Phase(1.0, {"a": 1, "b": 1})])
        pick = mixture.pick(seed=1, step=3, total_steps=8, size=20)
        assert pick == mixture.pick(seed=1, step=3, total_steps=8, size=20)
        assert pick != mixture.pick(seed=2, step=3, total_steps=8, size=20)
        assert pick != mixture.pick(seed=1, step=4, total_steps=8, size=20)

    @pytest.mark.parametrize(
        ("phases", "message"),
        [
            ([Phase(0.5, {"a": 1})], r"phases end at \[0.5\].*the last one 1.0"),
            ([Phase(0.6, {"a": 1}), Phase(0.5, {"a": 1}), Phase(1.0, {"a": 1})], "rising"),
            ([Phase(0.0, {"a": 1}), Phase(1.0, {"a": 1})], "rising"),
            ([Phase(1.0, {"d": 1})], "'d'; the data are a, b, c"),
        ],
    )
    def test_refused(self, phases, message):
        with pytest.raises(ValueError, match=message):
            Mixture(SOURCES, phases)

    def test_no_data(self):
        with pytest.raises(ValueError, match=r"no training examples; check `train\.data`"):
            Mixture({})
