"""The mask of the doubled training layout equals that of five public builders."""

from __future__ import annotations

import torch
from dare_bench.kernels.masks import doubled_mask


def rows(mask):
    return ["".join(str(int(value)) for value in line) for line in mask]


def test_every_case_of_the_public_builders(oracle):
    cases = oracle("block_diffusion_mask")["cases"]
    assert len(cases) == 5
    for case in cases:
        positions = torch.arange(case["seq_len"])[None]
        mask = doubled_mask(positions, positions, case["block_size"])[0, 0]
        assert rows(mask) == case["mask_rows"]
        assert int(mask.sum()) == case["num_true"]


def test_padding_closes_keys_and_every_token_keeps_itself(oracle):
    case = oracle("block_diffusion_mask")["padding_case"]
    real = torch.tensor(case["attention_mask"])[None]
    positions = torch.arange(real.shape[1])[None]
    mask = doubled_mask(positions, positions, case["block_size"], noisy_real=real, clean_real=real)[0, 0]
    expected = torch.tensor([[int(value) for value in line] for line in case["mask_rows"]]).bool()
    both = torch.cat([real, real], 1)[0].bool()
    assert torch.equal(mask[both], expected[both])  # queries of real tokens
    assert not mask[:, ~both].logical_and(~torch.eye(len(both)).bool()[:, ~both]).any()
    assert mask.diagonal().all()
