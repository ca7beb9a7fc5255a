"""token_logprob equals full logits in value and gradient, and never holds a [N, V] tensor."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from dare_bench.kernels.token_logprob import token_logprob, token_logprob_reference
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def make(n: int, d: int, v: int, k: int | None, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(v, d, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(0, v, (n,) if k is None else (n, k), generator=generator)
    return [hidden, weight, targets]


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(0, 13),
    v=st.integers(1, 17),
    k=st.one_of(st.none(), st.integers(0, 3)),
    chunk=st.integers(1, 20),
    temperature=st.sampled_from([1.0, 0.3, 2.5]),
    with_entropy=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_full_logits_in_value_and_gradient(n, v, k, chunk, temperature, with_entropy, seed):
    hidden, weight, targets = make(n, 5, v, k, seed=seed)
    gradients = []
    results = []
    for function, extra in ((token_logprob, {"chunk_size": chunk}), (token_logprob_reference, {})):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        out = function(h, w, targets, temperature=temperature, with_entropy=with_entropy, **extra)
        loss = (out.logps * torch.arange(1, out.logps.numel() + 1).view_as(out.logps)).sum()
        if with_entropy:
            loss = loss + (out.entropy * torch.arange(n)).sum()
        loss.backward()
        gradients.append((h.grad, w.grad))
        results.append(out)
    ours, reference = results
    assert torch.equal(ours.argmax, reference.argmax)
    torch.testing.assert_close(ours.logps, reference.logps)
    torch.testing.assert_close(ours.confidence, reference.confidence)
    assert (ours.entropy is None) == (not with_entropy)
    if with_entropy:
        torch.testing.assert_close(ours.entropy, reference.entropy)
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_hand_computed_case():
    # logits ln 1, ln 2, ln 5: probabilities 1/8, 2/8, 5/8
    weight = torch.tensor([[1.0], [2.0], [5.0]]).log()
    out = token_logprob(torch.ones(1, 1), weight, torch.tensor([1]), with_entropy=True)
    assert out.logps.item() == pytest.approx(math.log(2 / 8), abs=1e-6)
    assert out.argmax.item() == 2
    assert out.confidence.item() == pytest.approx(5 / 8, abs=1e-6)
    assert out.entropy.item() == pytest.approx(-sum(p * math.log(p) for p in (1 / 8, 2 / 8, 5 / 8)), abs=1e-6)
    # temperature 1/2 squares the weights: 1/30, 4/30, 25/30
    sharp = token_logprob(torch.ones(1, 1), weight, torch.tensor([1]), temperature=0.5)
    assert sharp.logps.item() == pytest.approx(math.log(4 / 30), abs=1e-6)


@pytest.mark.parametrize("with_entropy", [False, True])
def test_gradcheck(with_entropy):
    hidden, weight, targets = make(7, 4, 9, 2)

    def scores(h: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        out = token_logprob(h, w, targets, chunk_size=3, temperature=0.8, with_entropy=with_entropy)
        return (out.logps, out.entropy) if with_entropy else (out.logps,)

    assert torch.autograd.gradcheck(scores, (hidden.requires_grad_(), weight.requires_grad_()))


def test_repeated_targets_add_their_gradients():
    hidden, weight, _ = make(3, 4, 6, None)
    targets = torch.tensor([[2, 2], [0, 5], [5, 5]])
    grads = []
    for function in (token_logprob, token_logprob_reference):
        h = hidden.clone().requires_grad_()
        function(h, weight, targets).logps.sum().backward()
        grads.append(h.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_log_softmax_is_at_least_float32(dtype, result):
    hidden, weight, targets = make(12, 8, 30, None, dtype)
    out = token_logprob(hidden, weight, targets, with_entropy=True)
    assert {out.logps.dtype, out.confidence.dtype, out.entropy.dtype} == {result}
    wanted = torch.log_softmax((hidden @ weight.T).to(result), -1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(out.logps, wanted)
    # rounded to bfloat16 anywhere, probabilities would not add up to one
    everything = token_logprob(hidden, weight, torch.arange(30).expand(12, 30)).logps
    torch.testing.assert_close(everything.exp().sum(1), torch.ones(12, dtype=result))


def test_gradients_keep_the_parameters_dtype():
    hidden, weight, targets = make(6, 4, 10, None, torch.bfloat16)
    hidden.requires_grad_()
    weight.requires_grad_()
    token_logprob(hidden, weight, targets, chunk_size=2).logps.sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_huge_logits_stay_finite():
    hidden, weight, targets = make(4, 3, 8, None, torch.float32)
    hidden = (hidden * 1e4).requires_grad_()
    out = token_logprob(hidden, weight, targets, with_entropy=True)
    (out.logps.sum() + out.entropy.sum()).backward()
    assert torch.isfinite(out.logps).all()
    assert torch.isfinite(out.entropy).all()
    assert torch.isfinite(hidden.grad).all()


def test_nan_is_not_hidden():
    hidden, weight, targets = make(3, 3, 8, None)
    hidden[1] = float("nan")
    out = token_logprob(hidden, weight, targets, with_entropy=True)
    assert out.logps.isnan().tolist() == [False, True, False]
    assert out.entropy.isnan().tolist() == [False, True, False]


def test_only_needed_gradients_are_formed():
    hidden, weight, targets = make(4, 3, 8, None)
    hidden.requires_grad_()
    token_logprob(hidden, weight, targets).logps.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None
    confidence = token_logprob(hidden, weight, targets).confidence
    assert not confidence.requires_grad


def test_rows_do_not_depend_on_their_chunk():
    hidden, weight, targets = make(20, 16, 40, None)
    whole = token_logprob(hidden, weight, targets, chunk_size=20)
    split = token_logprob(hidden, weight, targets, chunk_size=1)
    assert torch.equal(whole.argmax, split.argmax)
    torch.testing.assert_close(whole.logps, split.logps, rtol=1e-12, atol=1e-12)


class LargestTensor(TorchDispatchMode):
    """Records the largest tensor any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(item, Tensor):
                self.numel = max(self.numel, item.numel())
        return out


@pytest.mark.parametrize("with_entropy", [False, True])
def test_never_more_than_one_chunk_of_logits(with_entropy):
    n, d, v, chunk = 600, 2, 500, 8
    largest = {}
    for name, function, extra in (
        ("ours", token_logprob, {"chunk_size": chunk}),
        ("reference", token_logprob_reference, {}),
    ):
        hidden, weight, targets = make(n, d, v, None, torch.float32)
        hidden.requires_grad_()
        weight.requires_grad_()
        with LargestTensor() as seen:
            out = function(hidden, weight, targets, with_entropy=with_entropy, **extra)
            loss = out.logps.sum() if out.entropy is None else out.logps.sum() + out.entropy.sum()
            loss.backward()
        largest[name] = seen.numel
    assert largest["ours"] == chunk * v
    assert largest["reference"] == n * v  # the probe sees what it should


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.zeros(2, 3, 4)}, r"hidden must be \[N, d\].*\(2, 3, 4\).*select positions first"),
        ({"targets": torch.zeros(5, dtype=torch.int64)}, r"N = 3 rows.*\(5,\)"),
        ({"targets": torch.zeros(3)}, r"int64 token ids, got torch\.float32"),
        ({"hidden": torch.zeros(3, 4, dtype=torch.int64)}, r"floating point, got torch\.int64"),
        ({"chunk_size": 0}, r"at least 1 row, got 0"),
        ({"temperature": 0.0}, r"greater than 0, got 0\.0; greedy"),
    ],
)
def test_errors_name_the_value_and_the_next_step(change, message):
    arguments = {"hidden": torch.zeros(3, 4), "weight": torch.zeros(7, 4), "targets": torch.zeros(3, dtype=torch.int64)}
    with pytest.raises(ValueError, match=message):
        token_logprob(**(arguments | change))
