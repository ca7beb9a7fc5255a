"""The choice of an attention path, its reason and its report."""

from __future__ import annotations

import logging

import pytest
import torch
from dare_bench.kernels import dispatch
from dare_bench.kernels.dispatch import choose, has_module, report


@pytest.mark.parametrize(
    ("device", "dtype", "options", "path", "reason"),
    [
        ("cpu", torch.float32, {"mask": "none"}, "sdpa", "needs CUDA, the device is cpu"),
        ("cpu", torch.bfloat16, {"mask": "arbitrary"}, "sdpa", "needs CUDA, the device is cpu"),
        ("cuda", torch.bfloat16, {"mask": "none"}, "flash", "flash-attn importable"),
        ("cuda:1", torch.float16, {"mask": "none", "head_dim": 128}, "flash", "flash-attn importable"),
        ("cuda", torch.bfloat16, {"mask": "arbitrary"}, "sdpa", "takes no boolean mask"),
        ("cuda", torch.float32, {"mask": "none"}, "sdpa", "the dtype is float32"),
        ("cuda", torch.bfloat16, {"mask": "none", "head_dim": 320}, "sdpa", "these have 320"),
    ],
)
def test_path_and_reason(device, dtype, options, path, reason):
    choice = choose(device, dtype, has_flash_attn=True, **options)
    assert choice.path == path
    assert reason in choice.reason


def test_without_flash_attn_the_gpu_uses_sdpa():
    choice = choose("cuda", torch.bfloat16, mask="none", has_flash_attn=False)
    assert (choice.path, choice.reason) == ("sdpa", "flash-attn is not installed")


def test_names_for_transformers():
    assert choose("cpu", torch.float32, mask="arbitrary").attn_implementation == "sdpa"
    assert choose("cpu", torch.float32, mask="none", prefer="reference").attn_implementation == "eager"
    flash = choose("cuda", torch.bfloat16, mask="none", has_flash_attn=True)
    assert flash.attn_implementation == "flash_attention_2"


def test_forced_path_that_cannot_run_is_refused():
    with pytest.raises(ValueError, match=r"'flash' cannot run: flash-attn takes no boolean mask; use 'sdpa'"):
        choose("cuda", torch.bfloat16, mask="arbitrary", prefer="flash", has_flash_attn=True)
    with pytest.raises(ValueError, match=r"'flsh' is unknown; allowed: flash, sdpa, reference"):
        choose("cpu", torch.float32, mask="none", prefer="flsh")
    with pytest.raises(ValueError, match=r"mask kind 'causal' is unknown; allowed: 'none', 'arbitrary'"):
        choose("cpu", torch.float32, mask="causal")


def test_report_lists_every_operation_with_a_reason():
    rows = report("cpu", torch.float32)
    assert [(row.operation, row.path) for row in rows] == [
        ("attention, no padding", "sdpa"),
        ("attention, padded or block-causal", "sdpa"),
        ("token log-probs", "chunked"),
        ("select and commit", "vectorised"),
    ]
    assert all(row.reason for row in rows)


def test_a_choice_is_logged_once(caplog):
    dispatch._logged.cache_clear()
    with caplog.at_level(logging.INFO, logger=dispatch.__name__):
        for _ in range(3):
            choose("cpu", torch.float32, mask="none")
    assert [record.getMessage() for record in caplog.records] == [
        "attention: sdpa (flash-attn needs CUDA, the device is cpu)"
    ]


def test_has_module_does_not_import():
    assert has_module("torch")
    assert not has_module("a_module_nobody_has")
