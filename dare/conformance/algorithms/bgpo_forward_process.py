"""bgpo_forward_process: eight stratified masks of one response, drawn by DARE."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dare_bench.dare.algorithms import estimators
from dare_bench.dare.conformance.algorithms import _elbo
from dare_bench.dare.conformance.fixture import Compared, Fixture


def cases(data: Fixture) -> Iterator[Compared]:
    """Positions are drawn by a generator of theirs: counts, inputs and weights follow from the first count and the masks."""
    masked, noisy = data.tensor("mask_indices"), data.tensor("noisy")
    real = data.tensor("attention_mask").bool()
    mask_id = int(noisy[masked].unique())
    begin, end = int(real.nonzero()[0]), int(real.nonzero()[-1]) + 1
    ids = data.tensor("batch")[:1, begin:end]
    recorded = data.tensor("batch")[:, begin:end]
    yield Compared("one response", recorded, ids.expand(len(masked), -1))
    prompt = int(masked.any(0).nonzero()[0]) - begin
    batch = _elbo.batch_of(ids, prompt, mask_id)
    total = batch.counted.sum(1)
    counts = masked.sum(1)
    yield Compared("counts", counts, estimators.stratified_counts(counts[:1], total, len(masked))[0])
    for draw in range(len(masked)):
        own = masked[draw : draw + 1, begin:end]
        weight = estimators.count_weights(counts[draw : draw + 1], total)
        rows = estimators.elbo_rows(batch, own, weight, draw, batch.counted)
        yield Compared(f"draw {draw} inputs", noisy[draw : draw + 1, begin:end], rows.ids)
        share = data.tensor("p_mask")[draw, begin:end][own[0]]
        yield Compared(f"draw {draw} share", share, 1 / rows.weight[0][own[0]], 1e-6)
        yield Compared(
            f"draw {draw} outside", torch.tensor(False), masked[draw, :begin].any() | masked[draw, end:].any()
        )
