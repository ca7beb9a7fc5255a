"""Scoring rows and the two-pass backward: memory of one micro-batch, gradient of the whole batch.

A loss may couple all rows of a batch (groups, ratios of sums, means over draws). Pass one computes the log-probabilities
of all rows without a graph; the loss of the whole batch is then differentiated with respect to them; pass two recomputes
one micro-batch at a time and pushes its share of that gradient through the network. The result equals the direct
gradient, and memory does not grow with the number of rows or Monte-Carlo draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from dare_bench.dare.algorithms.base import Algorithm, Context, Rows
from dare_bench.dare.diffusion.block import concatenate
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.training.world import ALONE, World
from dare_bench.kernels.token_logprob import token_logprob
from torch import Tensor

#: Log-probabilities [N, S, K] of the rows, one tensor per part; None = not scored.
Scores = Tensor | Sequence[Tensor] | None


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
    logps = _at_head(lm, hidden, rows.targets[rows.mask], rows.temperature)
    return logps.new_zeros(rows.targets.shape).index_put((rows.mask,), logps)


def _at_head(lm: DiffusionLM, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Log-probabilities of targets through a call of the head itself: sharded weights are gathered by its hooks."""
    head = lm.model.get_output_embeddings()
    # Not `setattr`: that of a module looks for parameters first.
    head.__dict__["forward"] = lambda states: token_logprob(states, head.weight, targets, temperature=temperature).logps
    try:
        return head(hidden)
    finally:
        del head.__dict__["forward"]


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


def _shares(rows: Rows, micro_rows: int | None, world: World) -> list[tuple[Tensor, bool]]:
    """Micro-batches of this process; without a size for them the rows are divided evenly."""
    if world.size > 1 and not micro_rows:
        micro_rows = -(-len(rows) // world.size)
    return world.share(list(chunks(rows, micro_rows)))


@torch.no_grad()
def score_all(lm: DiffusionLM, rows: Rows, micro_rows: int | None, world: World = ALONE) -> Tensor:
    """`score` of all rows without a graph, micro-batch by micro-batch, on the CPU [N, S, K].

    Args:
        lm, rows: as in `score`.
        micro_rows: rows per forward; None = all at once.
        world: processes that divide the micro-batches; each gets all scores.
    """
    out: Tensor | None = None
    for index, counts in _shares(rows, micro_rows, world):
        logps = score(lm, rows.select(index)).cpu()
        if out is None:
            out = logps.new_zeros(rows.targets.shape)
        if counts:
            out[index, : logps.shape[1]] = logps
    if out is None:  # more processes than micro-batches
        out = torch.zeros(rows.targets.shape, dtype=torch.float64 if lm.dtype == torch.float64 else torch.float32)
    return world.total(out)


def backward(
    lm: DiffusionLM,
    algorithm: Algorithm,
    rows: Rows | Iterable[Rows],
    advantages: Tensor,
    context: Context,
    *,
    old: Scores = None,
    ref: Scores = None,
    micro_rows: int | None = None,
    push: Callable[[Tensor], None] = Tensor.backward,
    world: World = ALONE,
) -> dict[str, float]:
    """Accumulate the gradient of one optimiser step.

    Args:
        lm: policy.
        algorithm: gives the loss.
        rows: all rows of the step (whole groups), in one part or several. Of a separable algorithm one part is held at a
            time.
        advantages: [B].
        context: where in the run.
        old, ref: [N, S, K] log-probabilities under the rollout and the reference policy, one tensor per part.
        micro_rows: rows per forward.
        push: runs the backward pass of a scalar (accelerate's, when mixed precision scales it).
        world: processes that divide the micro-batches; the caller sums their gradients.

    Returns:
        The loss's metrics; ``loss`` is the value of the whole batch.
    """
    parts = [rows] if isinstance(rows, Rows) else rows
    old, ref = _per_part(old), _per_part(ref)
    if algorithm.separable:
        return _separable(lm, algorithm, parts, advantages, context, old, ref, micro_rows, push, world)
    rows = concatenate(list(parts))
    scores = joined(old, rows), joined(ref, rows)
    return _coupled(lm, algorithm, rows, advantages, context, *scores, micro_rows, push, world)


def joined(scores: Sequence[Tensor] | None, rows: Rows) -> Tensor | None:
    """Scores of parts as those of the concatenated rows [N, S, K]."""
    if scores is None:
        return None
    out = scores[0].new_zeros(rows.targets.shape)
    begin = 0
    for part in scores:
        out[begin : begin + len(part), : part.shape[1], : part.shape[2]] = part
        begin += len(part)
    return out


def _per_part(scores: Scores) -> Sequence[Tensor] | None:
    return [scores] if isinstance(scores, Tensor) else scores


def _coupled(
    lm: DiffusionLM,
    algorithm: Algorithm,
    rows: Rows,
    advantages: Tensor,
    context: Context,
    old: Tensor | None,
    ref: Tensor | None,
    micro_rows: int | None,
    push: Callable[[Tensor], None],
    world: World,
) -> dict[str, float]:
    """One loss call over all rows: its gradient with respect to the log-probabilities is pushed part by part."""
    parts = _shares(rows, micro_rows, world)
    if world.size == 1 and len(parts) == 1:
        new = score(lm, rows).cpu()
        loss, metrics = algorithm.loss(new, old if old is not None else new.detach(), ref, rows, advantages, context)
        push(loss)
        return metrics
    new = score_all(lm, rows, micro_rows, world).requires_grad_()
    loss, metrics = algorithm.loss(new, old if old is not None else new.detach(), ref, rows, advantages, context)
    (grad,) = torch.autograd.grad(loss, new)
    # Rows without a gradient (groups of equal rewards, clipped ratios) are not computed a second time.
    moves = grad.flatten(1).ne(0).any(1)
    moving, grad = rows.select(moves.nonzero()[:, 0]), grad[moves]
    for index, counts in _shares(moving, micro_rows, world) if len(moving) else ():
        again = score(lm, moving.select(index))
        push(counts * (again * grad[index][:, : again.shape[1]].to(again.device)).sum())
    return metrics


def _separable(
    lm: DiffusionLM,
    algorithm: Algorithm,
    parts: Iterable[Rows],
    advantages: Tensor,
    context: Context,
    old: Sequence[Tensor] | None,
    ref: Sequence[Tensor] | None,
    micro_rows: int | None,
    push: Callable[[Tensor], None],
    world: World,
) -> dict[str, float]:
    """One loss call and backward pass per micro-batch: the loss is a sum over rows."""
    total: dict[str, float] = {}
    counted = 0
    for number, rows in enumerate(parts):
        for index, counts in _shares(rows, micro_rows, world):
            part = rows.select(index)
            new = score(lm, part)
            width = new.shape[1]
            loss, metrics = algorithm.loss(
                new,
                new.detach() if old is None else old[number][index][:, :width].to(new.device),
                None if ref is None else ref[number][index][:, :width].to(new.device),
                part.to(new.device),
                advantages.to(new.device),
                context,
            )
            push(loss if counts else 0 * loss)
            if not counts:
                continue
            share = int(part.mask.sum())
            counted += share
            for name, value in metrics.items():  # the loss adds up, everything else is a mean over scored tokens
                total[name] = total.get(name, 0.0) + (value if name == "loss" else value * share)
    sums = world.totals(total | {"counted": counted})
    counted = max(sums.pop("counted"), 1)
    return {name: value if name == "loss" else value / counted for name, value in sums.items()}
