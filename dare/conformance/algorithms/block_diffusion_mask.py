"""block_diffusion_mask.json: the mask of the doubled layout as five public builders make it, packed rows, padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.conformance.fixture import Compared, Fixture
from dare_bench.dare.diffusion import packing
from dare_bench.kernels.masks import document_mask, doubled_mask
from torch import Tensor


def _rows(lines: list[str]) -> Tensor:
    return torch.tensor([[character == "1" for character in line] for line in lines])


def _documents(ids: list[int]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor(ids).bincount().tolist()
    return packing.packed(lengths, len(ids))


def _packed(case: dict[str, Any]) -> Tensor:
    documents, positions = _documents(case["doc_ids"])
    place, owner = positions[None], documents[None]
    mask = doubled_mask(place, place, case["block_size"], noisy_documents=owner, clean_documents=owner)
    return mask[0, 0]


def cases(data: Fixture) -> Iterator[Compared]:
    """Every case of the builders, packed documents in both orders, padding."""
    for case in data["cases"]:
        name = f"L {case['seq_len']}, block {case['block_size']}"
        positions = torch.arange(case["seq_len"])[None]
        mask = doubled_mask(positions, positions, case["block_size"])[0, 0]
        yield Compared(name, _rows(case["mask_rows"]), mask)
        yield Compared(f"{name}: pairs", case["num_true"], mask.sum())
    case = data["packed_documents"]
    mask = _packed(case)
    yield Compared("packed", _rows(case["mask_rows_concatenated"]), mask)
    order = packing.interleaved(torch.tensor(case["doc_ids"]))
    yield Compared("interleaving", case["perm_concatenated_to_interleaved"], order)
    yield Compared("packed, interleaved", _rows(case["mask_rows_interleaved_sdar"]), mask[order][:, order])
    case = data["packed_documents_block_aligned"]
    yield Compared("packed in whole blocks", _rows(case["mask_rows_concatenated"]), _packed(case))
    case = data["mdlm_document_mask"]
    documents, _ = _documents(case["doc_ids"])
    yield Compared("documents without blocks", _rows(case["mask_rows"]), document_mask(documents[None])[0, 0])

    case = data["padding_case"]
    real = torch.tensor(case["attention_mask"])[None]
    positions = torch.arange(real.shape[1])[None]
    mask = doubled_mask(positions, positions, case["block_size"], noisy_real=real, clean_real=real)[0, 0]
    expected, token = _rows(case["mask_rows"]), torch.cat([real, real], 1)[0] != 0
    yield Compared("padding: queries of tokens", expected[token], mask[token])
    # Recorded rows of padding are empty; here no row is, so that no softmax is over nothing. Nothing reads them.
    yield Compared("padding: keys seen by tokens", torch.zeros(()).bool(), mask[token][:, ~token].any())
    yield Compared("padding: rows that see something", torch.ones(()).bool(), mask[~token].any(1).all())

    case = data["packed_position_ids"]
    (given,), (fixed,) = case["input"], case["after_padding_fix"]
    (lengths,) = case["document_lengths"]
    documents, positions = packing.packed(lengths[:-1], len(given))
    yield Compared("positions of a packed row", fixed, positions)
    yield Compared("documents of a packed row", lengths, documents.bincount())
    inside = sum(lengths[:-1])
    yield Compared("positions before the padding", given[:inside], positions[:inside])
