"""Scoring rows and the two-pass backward: memory of one micro-batch, gradient of the whole batch.

A loss may couple all rows of a batch (groups, ratios of sums, means over draws). Pass one computes the log-probabilities
of all rows without a graph; the loss of the whole batch is then differentiated with respect to them; pass two recomputes
one micro-batch at a time and pushes its share of that gradient through the network. The result equals the direct
gradient, and memory does not grow with the number of rows or Monte-Carlo draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from dare_bench.dare.algorithms.base import Algorithm, Context, Rows
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.kernels.token_logprob import token_logprob
from torch import Tensor


def score(lm: DiffusionLM, rows: Rows) -> Tensor:
    """Log-probabilities of the targets of some rows, in one forward.

    Args:
        lm: the network; autograd follows the caller's mode.
        rows: on any device.

    Returns:
        float32 [N, S, K] (float64 for float64 weights) on the model's device, 0 where `rows.mask` is False.
    """
    rows = rows.to(lm.device)
    if rows.layout == "noisy_clean":
        hidden = lm.doubled(
            rows.ids,
            rows.context,
            noisy_positions=rows.position_ids,
            noisy_real=rows.real,
            clean_real=rows.context_real,
            positions=rows.mask,
            block_length=rows.block_length,
        )
    else:
        real = None if bool(rows.real.all()) else rows.real
        hidden = lm.hidden(rows.ids, attention_mask=real, position_ids=rows.position_ids, positions=rows.mask)
    logps = token_logprob(hidden, lm.head_weight, rows.targets[rows.mask]).logps
    return logps.new_zeros(rows.targets.shape).index_put((rows.mask,), logps)


def chunks(rows: Rows, micro_rows: int | None) -> Iterator[Tensor]:
    """Indices of micro-batches, rows of like length together.

    Args:
        rows: all rows.
        micro_rows: rows per micro-batch; None = all at once.
    """
    count = len(rows)
    if not micro_rows or micro_rows >= count:
        yield torch.arange(count)
        return
    width = rows.real.sum(1) + (0 if rows.context_real is None else rows.context_real.sum(1))
    yield from width.argsort(stable=True).split(micro_rows)


@torch.no_grad()
def score_all(lm: DiffusionLM, rows: Rows, micro_rows: int | None) -> Tensor:
    """`score` of all rows without a graph, micro-batch by micro-batch, on the CPU [N, S, K]."""
    out: Tensor | None = None
    for index in chunks(rows, micro_rows):
        part = rows.select(index)
        logps = score(lm, part).cpu()
        if out is None:
            out = logps.new_zeros(rows.targets.shape)
        out[index, : logps.shape[1]] = logps
    assert out is not None
    return out


def backward(
    lm: DiffusionLM,
    algorithm: Algorithm,
    rows: Rows,
    advantages: Tensor,
    context: Context,
    *,
    old: Tensor | None = None,
    ref: Tensor | None = None,
    micro_rows: int | None = None,
    push: Callable[[Tensor], None] = Tensor.backward,
) -> dict[str, float]:
    """Accumulate the gradient of one optimiser step.

    Args:
        lm: policy.
        algorithm: gives the loss.
        rows: all rows of the step (whole groups).
        advantages: [B].
        context: where in the run.
        old, ref: [N, S, K] log-probabilities under the rollout and the reference policy.
        micro_rows: rows per forward.
        push: runs the backward pass of a scalar (accelerate's, when mixed precision scales it).

    Returns:
        The loss's metrics; ``loss`` is the value of the whole batch.
    """
    if algorithm.separable:
        return _separable(lm, algorithm, rows, advantages, context, old, ref, micro_rows, push)
    parts = list(chunks(rows, micro_rows))
    if len(parts) == 1:
        new = score(lm, rows).cpu()
        loss, metrics = algorithm.loss(new, old if old is not None else new.detach(), ref, rows, advantages, context)
        push(loss)
        return metrics
    new = score_all(lm, rows, micro_rows).requires_grad_()
    loss, metrics = algorithm.loss(new, old if old is not None else new.detach(), ref, rows, advantages, context)
    (grad,) = torch.autograd.grad(loss, new)
    for index in parts:
        part = rows.select(index)
        again = score(lm, part)
        push((again * grad[index][:, : again.shape[1]].to(again.device)).sum())
    return metrics


def _separable(
    lm: DiffusionLM,
    algorithm: Algorithm,
    rows: Rows,
    advantages: Tensor,
    context: Context,
    old: Tensor | None,
    ref: Tensor | None,
    micro_rows: int | None,
    push: Callable[[Tensor], None],
) -> dict[str, float]:
    total: dict[str, float] = {}
    counted = max(int(rows.mask.sum()), 1)
    for index in chunks(rows, micro_rows):
        part = rows.select(index)
        new = score(lm, part)
        width = new.shape[1]
        loss, metrics = algorithm.loss(
            new,
            None if old is None else old[index][:, :width].to(new.device),
            None if ref is None else ref[index][:, :width].to(new.device),
            part.to(new.device),
            advantages,
            context,
        )
        push(loss)
        share = int(part.mask.sum()) / counted
        for name, value in metrics.items():  # the loss adds up, everything else is a mean over scored tokens
            total[name] = total.get(name, 0.0) + (value if name == "loss" else value * share)
    return total
