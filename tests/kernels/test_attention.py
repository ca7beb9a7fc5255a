"""All attention paths give one result, and padding never leaks."""

from __future__ import annotations

import sys
import types

import pytest
import torch
import torch.nn.functional as F
from dare_bench.kernels.attention import attention, flash_attention, reference_attention, sdpa_attention
from dare_bench.kernels.masks import block_causal_mask, key_mask
from hypothesis import given, settings
from hypothesis import strategies as st


def qkv(b=2, h=4, h_kv=2, q=6, k=9, d=8, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(b, h, q, d), (b, h_kv, k, d), (b, h_kv, k, d)]
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]


@settings(max_examples=40, deadline=None)
@given(
    q=st.integers(1, 7),
    k=st.integers(1, 7),
    groups=st.sampled_from([1, 2, 3]),
    masked=st.booleans(),
    per_head=st.booleans(),
    seed=st.integers(0, 999),
)
def test_paths_agree_in_value_and_gradient(q, k, groups, masked, per_head, seed):
    tensors = qkv(h=2 * groups, q=q, k=k, dtype=torch.float64, seed=seed)
    mask = None
    if masked:  # about a third open, so that empty rows occur
        shape = (2, 2 * groups if per_head else 1, q, k)
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.35
    outputs, gradients = [], []
    for path in ("reference", "sdpa"):
        inputs = [t.clone().requires_grad_() for t in tensors]
        out = attention(*inputs, mask, path=path)
        (out * torch.arange(out.numel()).view_as(out)).sum().backward()
        outputs.append(out)
        gradients.append([t.grad for t in inputs])
    torch.testing.assert_close(*outputs)
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_hand_computed_case():
    q = torch.tensor([[[[2.0]]]])
    k = torch.tensor([[[[0.0], [1.0]]]])
    v = torch.tensor([[[[1.0], [3.0]]]])
    weight = torch.tensor(2.0).exp() / (1 + torch.tensor(2.0).exp())
    for function in (reference_attention, sdpa_attention):
        torch.testing.assert_close(function(q, k, v).squeeze(), 1 + 2 * weight)
        assert function(q, k, v, torch.tensor([[[[True, False]]]])).item() == 1.0


def test_key_heads_serve_consecutive_query_heads():
    q, k, v = qkv(h=4, h_kv=2)
    full = [t.repeat_interleave(2, dim=1) for t in (k, v)]
    torch.testing.assert_close(attention(q, k, v), attention(q, *full))


@pytest.mark.parametrize("path", ["reference", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padded_rows_are_finite_and_do_not_leak(path, dtype):
    q, k, v = qkv(q=6, k=6, dtype=dtype)
    real = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]])
    mask = key_mask(real).expand(2, 1, 6, 6)
    out = attention(q, k, v, mask, path=path)
    assert torch.isfinite(out).all()
    assert (out[1] == 0).all()
    alone = attention(q[:1, :, :4], k[:1, :, :4], v[:1, :, :4], path=path)
    torch.testing.assert_close(out[:1, :, :4], alone)
    k[0, :, 4:], v[0, :, 4:] = 100.0, -100.0
    assert torch.equal(attention(q, k, v, mask, path=path)[0], out[0])


@pytest.mark.parametrize("path", ["reference", "sdpa"])
def test_gradients_of_empty_rows_are_finite(path):
    inputs = [t.requires_grad_() for t in qkv(q=3, k=3)]
    mask = torch.tensor([[True, False, False], [False, False, False], [True, True, True]])
    attention(*inputs, mask, path=path).sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in inputs)
    assert (inputs[0].grad[:, :, 1] == 0).all()


def test_later_blocks_do_not_reach_earlier_ones():
    q, k, v = qkv(q=8, k=8)
    mask = block_causal_mask(torch.arange(8).expand(2, 8), 4)
    before = attention(q, k, v, mask)
    k[:, :, 4:], v[:, :, 4:] = 5.0, 5.0
    after = attention(q, k, v, mask)
    assert torch.equal(before[:, :, :4], after[:, :, :4])
    assert not torch.allclose(before[:, :, 4:], after[:, :, 4:])


def test_flash_path_hands_over_length_before_heads(monkeypatch):
    # The package needs CUDA; a stand-in with its documented layout checks everything around the kernel.
    def flash_attn_func(q, k, v, causal):
        assert not causal
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), enable_gqa=True)
        return out.transpose(1, 2)

    monkeypatch.setitem(sys.modules, "flash_attn", types.SimpleNamespace(flash_attn_func=flash_attn_func))
    tensors = qkv()
    torch.testing.assert_close(flash_attention(*tensors), reference_attention(*tensors))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_paths_agree_on_the_gpu():
    tensors = [t.cuda() for t in qkv(q=64, k=64, d=64, dtype=torch.bfloat16)]
    real = torch.ones(2, 64, device="cuda")
    real[0, 50:] = 0
    wanted = reference_attention(*tensors, key_mask(real))
    torch.testing.assert_close(attention(*tensors, key_mask(real)), wanted, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(attention(*tensors), reference_attention(*tensors), rtol=2e-2, atol=2e-2)


def test_errors_name_what_was_given():
    q, k, v = qkv()
    with pytest.raises(ValueError, match=r"q must be \[B, H, Q, D\].*\(2, 4, 6, 8\), \(2, 2, 9, 8\), \(2, 2, 5, 8\)"):
        attention(q, k, v[:, :, :5])
    with pytest.raises(ValueError, match=r"query heads \(3\) must be a multiple of key-value heads \(2\)"):
        attention(q[:, :3], k, v)
    with pytest.raises(ValueError, match=r"mask must be bool .* got torch.float32; use mask != 0"):
        attention(q, k, v, torch.ones(6, 9))
    with pytest.raises(ValueError, match=r"'flash' cannot run: flash-attn needs CUDA, the device is cpu"):
        attention(q, k, v, path="flash")
