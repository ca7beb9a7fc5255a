"""Weightings: end tokens are held back by the schedule, credit equals its dense definition, rows stay apart."""

from __future__ import annotations

import math

import pytest
import torch
from dare_bench.dare.decoding import weightings
from dare_bench.dare.families.registry import UnknownName
from hypothesis import given, settings
from hypothesis import strategies as st

VOCAB = 7


def make(name: str, rows: int = 3, block: int = 4, **options) -> weightings.Weighting:
    return weightings.make(name, options, rows, block, VOCAB, "cpu")


def factors(steps: int, **options) -> list[float]:
    """What a confidence of 1 at an end token becomes in each step of a block."""
    found = make("eoser", **options)
    step, total = torch.arange(steps), torch.full((steps,), steps)
    one, ends = torch.ones(steps, 2, dtype=torch.float64), torch.tensor([[True, False]]).expand(steps, 2)
    weighed = found.weigh(one, torch.zeros(steps, 2, dtype=torch.int64), ends, step, total)
    assert (weighed[:, 1] == 1).all()
    return weighed[:, 0].tolist()


def test_eoser_rises_evenly_to_its_maximum():
    assert factors(4) == pytest.approx([0.4, 0.6, 0.8, 1.0])
    assert factors(3, min_gamma=0.5, max_gamma=0.7) == pytest.approx([0.5, 0.6, 0.7])
    assert factors(16) == pytest.approx([0.4 + 0.6 * index / 15 for index in range(16)])
    assert factors(1) == [1.0]


def test_eoser_doubles_with_the_schedule():
    wanted = [0.01 + 0.99 * (2 ** (index + 1) - 1) / 2**6 for index in range(6)]
    assert factors(6, min_gamma=0.01, schedule="doubling") == pytest.approx(wanted)


def test_eoser_counts_steps_of_the_block_and_rows_apart():
    found = make("eoser")
    confidence = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    ends = torch.tensor([[True, False], [True, True], [False, False]])
    tokens = torch.zeros(3, 2, dtype=torch.int64)
    weighed = found.weigh(confidence, tokens, ends, torch.tensor([0, 9, 0]), torch.tensor([4, 3, 2]))
    assert weighed.dtype == torch.float32
    assert torch.allclose(weighed, torch.tensor([[0.2, 0.5], [0.5, 0.5], [0.5, 0.5]]))
    assert torch.equal(confidence, torch.full((3, 2), 0.5))


def test_eoser_lowers_negative_measures_too():
    ends, zero = torch.tensor([[True]]), torch.zeros(1, dtype=torch.int64)
    weighed = make("eoser").weigh(torch.tensor([[-1.0]]), torch.zeros(1, 1).long(), ends, zero, zero + 4)
    assert float(weighed) == pytest.approx(-2.5)


class Dense:
    """CreditDecoding as published: a table [block, V] per row."""

    def __init__(self, rows: int, block: int) -> None:
        self.table = torch.zeros(rows, block, VOCAB, dtype=torch.float64)

    def adjust(self, logits, row, place, alpha, gamma, decay):
        out = []
        for line, r, p in zip(logits, row.tolist(), place.tolist(), strict=True):
            self.table[r, p] *= decay
            probability = line.double().softmax(-1)
            best = int(probability.argmax())
            self.table[r, p, best] += probability[best] ** gamma
            out.append(line.double() + alpha * torch.log1p(self.table[r, p]))
        return torch.stack(out)


@given(
    seed=st.integers(0, 10**6),
    forwards=st.integers(1, 20),
    alpha=st.sampled_from([0.0, 0.7]),
    gamma=st.sampled_from([0.2, 1.0]),
    decay=st.sampled_from([0.0, 0.8, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
@settings(deadline=None, max_examples=60)
def test_credit_equals_the_dense_table(seed, forwards, alpha, gamma, decay, dtype):
    generator = torch.Generator().manual_seed(seed)
    found, dense = make("credit", alpha=alpha, gamma=gamma, decay=decay), Dense(3, 4)
    for _ in range(forwards):
        masked = torch.rand(3, 4, generator=generator) < 0.7
        row, place = masked.nonzero(as_tuple=True)
        if torch.rand((), generator=generator) < 0.15:  # a row begins its next block
            found.reset(torch.tensor([1]))
            dense.table[1] = 0
        if not len(row):
            continue
        logits = (torch.randn(len(row), VOCAB, generator=generator) * 2).to(dtype)
        before = logits.clone()
        adjusted = found.adjust(logits, row, place)
        wanted = dense.adjust(logits, row, place, alpha, gamma, decay)
        assert torch.equal(logits, before)
        assert adjusted.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(adjusted.double(), wanted, atol=2e-5, rtol=1e-5)


def test_credit_by_hand():
    found = make("credit")
    logits = torch.tensor([[3.0, 0, 0, 0, 0, 0, 0]])
    row, place = torch.tensor([2]), torch.tensor([1])
    earned = (math.exp(3) / (math.exp(3) + 6)) ** 0.2
    first = found.adjust(logits, row, place)
    assert float(first[0, 0]) == pytest.approx(3 + 0.7 * math.log1p(earned), abs=1e-6)
    assert first[0, 1:].tolist() == [0.0] * 6
    second = found.adjust(logits, row, place)
    assert float(second[0, 0]) == pytest.approx(3 + 0.7 * math.log1p(0.8 * earned + earned), abs=1e-6)
    other = found.adjust(logits, torch.tensor([1]), place)
    assert torch.equal(other, first)  # other rows have none
    found.reset(torch.tensor([2]))
    assert torch.equal(found.adjust(logits, row, place), first)


def test_credit_in_chunks_is_the_same():
    logits = torch.randn(12, VOCAB, generator=torch.Generator().manual_seed(0))
    row, place = torch.ones(3, 4).nonzero(as_tuple=True)
    whole, parts = make("credit"), make("credit")
    for _ in range(3):
        together = whole.adjust(logits, row, place)
        pieces = [parts.adjust(logits[cut], row[cut], place[cut]) for cut in (slice(0, 5), slice(5, 12))]
        assert torch.equal(torch.cat(pieces), together)
        logits = logits.flip(1)
    assert whole.adjust(logits[:0], row[:0], place[:0]).shape == (0, VOCAB)


def test_what_a_weighting_does_not_touch_stays():
    confidence, logits = torch.rand(1, 2), torch.rand(2, VOCAB)
    row, place, zero = torch.tensor([0, 0]), torch.tensor([0, 1]), torch.zeros(1, dtype=torch.int64)
    tokens, ends = torch.zeros(1, 2).long(), torch.ones(1, 2, dtype=torch.bool)
    for name in ("none", "eoser"):
        found = make(name)
        found.reset(zero)
        assert found.adjust(logits, row, place) is logits
    for name in ("none", "credit"):
        assert make(name).weigh(confidence, tokens, ends, zero, zero + 4) is confidence


def test_names_and_options():
    assert list(weightings.weightings()) == ["credit", "eoser", "none"]
    assert all(entry.summary.endswith(".") for entry in weightings.weightings().values())
    assert weightings.resolve("eoser", {})[1] == {"min_gamma": 0.4, "max_gamma": 1.0, "schedule": "linear"}
    assert weightings.resolve("credit", {"decay": 0})[1] == {"alpha": 0.7, "gamma": 0.2, "decay": 0}
    with pytest.raises(UnknownName, match=r"unknown weighting 'eosr'\. Did you mean 'eoser'\? Known: credit, eoser"):
        weightings.resolve("eosr", {})
    with pytest.raises(UnknownName, match=r"option of weighting 'none' 'alpha'\. Known: \(none\)\."):
        weightings.resolve("none", {"alpha": 1})
    with pytest.raises(ValueError, match=r"weighting 'eoser': min_gamma is 0; allowed: a positive number"):
        make("eoser", min_gamma=0)
    with pytest.raises(ValueError, match=r"weighting 'eoser': schedule is 'cosine'; allowed: linear or doubling"):
        make("eoser", schedule="cosine")
    with pytest.raises(ValueError, match=r"weighting 'credit': decay is 1\.1; allowed: a number in \[0, 1\]"):
        make("credit", decay=1.1)
    with pytest.raises(ValueError, match="weighting 'none' is registered twice"):
        weightings.weighting("none")(weightings.Plain)
