"""tracerl_block: shrunken slices, inputs, attention and loss of TraceRL, computed by the published trainer of SDAR."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.algorithms.base import Batch, Rows
from dare_bench.dare.algorithms.trace_rl import TraceRL, TraceRLConfig
from dare_bench.dare.algorithms.trajectories import step_ranks
from dare_bench.dare.conformance.algorithms import _steps
from dare_bench.dare.conformance.fixture import Compared, Fixture
from dare_bench.kernels.masks import doubled_mask
from torch import Tensor


def cases(data: Fixture) -> Iterator[Compared]:
    """The left padding of the recorded inputs is a token of the prompt here: only attention and positions know of it."""
    about, ids, steps = data["config"], data.tensor("input_ids"), data.tensor("step_map")
    prompt, width, pad = about["L0"], about["L1"], about["pad_id"]
    for size, (whole, first) in data["collapse"].items():
        yield Compared(f"shrink {size}, response", whole, _largest(steps[:1], int(size))[0])
        yield Compared(f"shrink {size}, block", first, _largest(steps[:1, : about["block_size"]], int(size))[0])
    # Trailing padding behind the end of a response counts for nothing (post_num 0).
    tail = (ids == pad).flip(1).long().cumprod(1).flip(1).bool()
    recorded = torch.cat([torch.full((2, prompt), -1), steps], 1)
    batch = _steps.batch_of(
        ids, prompt, recorded, about["mask_id"], counted=~tail, block_length=about["block_size"], groups=torch.arange(2)
    )
    for size in (1, 2, 3):
        yield from _slices(data, batch, size, prompt, width, (ids[:, 0] == pad).long())


def _slices(data: Fixture, batch: Batch, size: int, prompt: int, width: int, padding: Tensor) -> Iterator[Compared]:
    about, case, key = data["config"], data[f"shrink{size}"], f"s{size}"
    advantages = torch.tensor([case["rewards_per_slice"][0], case["rewards_per_slice"][-1]], dtype=torch.float64)
    for name, beta in (("loss_no_kl", 0.0), ("loss", about["beta"])):
        algorithm = TraceRL(TraceRLConfig(shrink=size, beta=beta, eps_low=about["eps"], post_num=about["post_num"]))
        rows = _steps.rows_of(algorithm, batch, by_response=True)
        leaf = data.tensor(f"{key}.logits").requires_grad_()
        new = _steps.logps(rows, lambda row, place, leaf=leaf: leaf[row, place + width])
        old = torch.where(rows.mask, data.tensor(f"{key}.logp_old")[:, prompt:], 0.0)[..., None]
        loss, _ = algorithm.loss(new, old, None, rows, advantages, _steps.CONTEXT)
        yield Compared(f"{key} {name}", case[name], loss, 2e-6)
    yield Compared(f"{key} slices", case["n_slices"], len(rows))
    yield Compared(f"{key} advantages of slices", case["rewards_per_slice"], advantages[rows.owner], 1e-6)
    yield Compared(f"{key} advantages", data.tensor(f"{key}.reward"), advantages[rows.owner], 1e-6)
    yield Compared(f"{key} inputs", data.tensor(f"{key}.extended_ids"), torch.cat([rows.context, rows.ids], 1))
    yield Compared(f"{key} labels", data.tensor(f"{key}.labels"), rows.context)
    yield Compared(f"{key} targets", data.tensor(f"{key}.p_mask")[:, prompt:], rows.mask)
    expected = torch.where(rows.mask, data.tensor(f"{key}.logp_new")[:, prompt:], 0.0)
    yield Compared(f"{key} log-probabilities", expected, new[..., 0])
    (gradient,) = torch.autograd.grad(loss, leaf)
    yield Compared(f"{key} gradient", data.tensor(f"{key}.grad_logits"), gradient, 2e-6)
    yield from _layout(data, rows, key, padding[rows.owner])


def _layout(data: Fixture, rows: Rows, key: str, padding: Tensor) -> Iterator[Compared]:
    columns = torch.arange(rows.context.shape[1]).expand(rows.context.shape)
    real = columns >= padding[:, None]
    both = torch.cat([real, torch.ones_like(rows.mask)], 1)
    places = torch.cat([columns, rows.position_ids], 1) - padding[:, None]
    expected = data.tensor(f"{key}.position_ids")
    yield Compared(f"{key} positions", torch.where(both, expected, 0), torch.where(both, places, 0))
    plain = _mask(rows, columns, None)
    yield Compared(f"{key} attention", data.tensor(f"{key}.attention").bool(), plain[0])
    # Queries of padding attend to themselves here and to nothing there: no other token sees them.
    padded = _mask(rows, columns, real) & both[:, :, None]
    recorded = data.tensor(f"{key}.attention_after_pad").bool() & both[:, :, None]
    yield Compared(f"{key} attention with padding", recorded, padded)


def _mask(rows: Rows, columns: Tensor, real: Tensor | None) -> Tensor:
    """The mask of the doubled layout with its halves in the recorded order, bool [N, 2S, 2S]."""
    padding: dict[str, Any] = {} if real is None else {"clean_real": real}
    mask = doubled_mask(rows.position_ids, columns, rows.block_length, **padding)[:, 0]
    noisy = rows.ids.shape[1]
    order = torch.cat([torch.arange(noisy, mask.shape[-1]), torch.arange(noisy)])
    return mask[:, order][:, :, order]


def _largest(steps: Tensor, size: int) -> Tensor:
    """Shrunken steps under the published names: the largest step of each group."""
    groups = step_ranks(steps, size=size)
    largest = torch.full_like(groups, -1).scatter_reduce(1, groups, steps, "amax")
    return largest.gather(1, groups)
