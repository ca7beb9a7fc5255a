"""Oracles and hand-made batches for the tests of the algorithms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dare_bench.dare.algorithms.base import Batch

DATA = Path(__file__).parent / "data"
MASK, EOS = 63, 62


@pytest.fixture
def oracle() -> Callable[[str], dict[str, Any]]:
    """Reads one file of reference values (see the README beside the shared fixtures)."""

    def read(name: str) -> dict[str, Any]:
        return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))

    return read


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., Batch]:
    """Batches of random tokens: prompt and response lengths per row, padded at the right."""

    def make(
        prompts: list[int],
        responses: list[int],
        *,
        block_length: int = 0,
        seed: int = 0,
        counted: list[int] | None = None,
        rewards: list[float] | None = None,
        groups: list[int] | None = None,
        sample_ids: list[str] | None = None,
    ) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        prompt_lengths, lengths = torch.tensor(prompts), torch.tensor(prompts) + torch.tensor(responses)
        columns = torch.arange(int(lengths.max()))
        ids = torch.full((len(prompts), len(columns)), EOS)
        for row in range(len(prompts)):  # one draw per row: a row does not depend on the others' lengths
            ids[row, : lengths[row]] = torch.randint(0, EOS, (int(lengths[row]),), generator=generator)
        ends = prompt_lengths + torch.tensor(responses if counted is None else counted)
        return Batch(
            ids=ids,
            prompt_lengths=prompt_lengths,
            lengths=lengths,
            counted=(columns >= prompt_lengths[:, None]) & (columns < ends[:, None]),
            sample_ids=sample_ids or [f"s{row}" for row in range(len(prompts))],
            groups=torch.tensor(groups) if groups is not None else torch.arange(len(prompts)),
            mask_token_id=MASK,
            eos_token_id=EOS,
            block_length=block_length,
            rewards=None if rewards is None else torch.tensor(rewards, dtype=torch.float64),
        )

    return make
