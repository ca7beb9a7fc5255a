"""spg_dare_loss: DARE's reduction of sequence bounds, which is that of the published trainer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dare_bench.dare.algorithms.spg import SPG, SPGConfig
from dare_bench.dare.conformance.algorithms import _graded
from dare_bench.dare.conformance.fixture import Compared, Fixture


def cases(data: Fixture) -> Iterator[Compared]:
    """The loss of recorded bounds: a fully masked response whose tokens all score its bound has it as mean."""
    counted = data.tensor("response_mask").bool()
    batch = _graded.batch_of(torch.zeros(len(counted), 1).long(), torch.zeros_like(counted).long(), counted, 99)
    algorithm = SPG(SPGConfig(estimation="elbo", draws=1, masking="all"))
    context = _graded.context_of(batch)
    (rows,) = algorithm.rows(batch, context)
    scores = torch.where(rows.mask, data.tensor("log_prob_seq")[0][rows.owner][:, None], 0.0)[..., None]
    loss, _ = algorithm.loss(scores, None, None, rows, data.tensor("advantages_seq"), context)
    yield Compared("loss", data["loss"], loss)
