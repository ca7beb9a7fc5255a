"""spg: sequence bounds, losses and gradients of SPG's published trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.algorithms.base import Batch, Rows
from dare_bench.dare.algorithms.objectives import token_logps
from dare_bench.dare.algorithms.spg import SPG, SPGConfig
from dare_bench.dare.conformance.algorithms import _graded
from dare_bench.dare.conformance.fixture import Compared, Fixture
from dare_bench.dare.diffusion.block import concatenate
from torch import Tensor

KINDS = ("random", "block_all", "block_random")
#: Masks and logits of this part are not recorded; what it shows is compared on the recorded ones.
_ONE = "degenerate_num_t_1.num_t=1"
NOT_COMPARED = {
    "degenerate_num_t_1.num_t=2": "of masks that are not recorded",
    **{
        f"{_ONE}.{name}": "of masks that are not recorded"
        for name in ("loss_elbo", "loss_eubo", "loss_mix", "max_abs_grad")
    },
}


def cases(data: Fixture) -> Iterator[Compared]:
    """Bounds, loss and gradient per estimation; zero advantages; one draw; structure of the masks."""
    config, ids = data["config"], data.tensor("input_ids")
    prompt = config["prompt_len"]
    counted = data.tensor("completion_mask")
    batch = _graded.batch_of(ids[:, :prompt], ids[:, prompt:], counted, config["mask_id"])
    batch.rewards = Fixture.array(config["rewards"])
    advantages = SPG().advantages(batch)
    yield Compared("prompt mask", config["p_mask_prompt"], SPGConfig().prompt_mask)
    yield Compared("counted tokens", config["completion_lengths"], batch.counted.sum(1))
    yield Compared("advantages", data.tensor("advantages"), advantages)
    yield Compared("positive", data.tensor("reward_mask"), advantages > 0)
    rows = rows_of(batch, data.tensor("perturbed_seq"))
    for name, case in data["cases"].items():
        yield from _case(name, case, data, batch, rows, advantages)
    zero = data["zero_advantage"]
    loss, gradient = _run(SPG(), data.tensor("logits"), batch, rows, 0 * advantages)
    yield Compared("no advantage: loss", zero["loss"], loss, 0.0)
    yield Compared("no advantage: largest gradient", zero["max_abs_grad"], gradient.abs().max(), 0.0)
    yield from _one_draw(data, batch)
    for kind in KINDS:
        for seed in range(3):
            masks = data.tensor(f"mask_example.{kind}.seed{seed}")
            yield Compared(f"{kind} {seed}: structure", True, _fits(masks, kind, batch, config["block_length"]))


def _one_draw(data: Fixture, batch: Batch) -> Iterator[Compared]:
    """With one mask per response the bounds differ by a constant: how far their gradients are apart."""
    recorded = data["degenerate_num_t_1"]["num_t=1"]
    algorithm = SPG(SPGConfig(estimation="elbo", draws=1))
    rows = rows_of(batch, data.tensor("perturbed_seq")[:, :1])
    leaf = data.tensor("logits")[:, :1].requires_grad_()
    lower, upper = algorithm.bounds(_scores(leaf, rows), rows, batch.counted.sum(1).double())
    omega = algorithm.config.omega
    for name, bound in (("eubo", upper), ("mix", omega * upper + (1 - omega) * lower)):
        (apart,) = torch.autograd.grad((bound - lower).sum(), leaf, retain_graph=True)
        yield Compared(f"one draw: {name}", recorded[f"max_abs_grad_diff_{name}_vs_elbo"], apart.abs().max(), 1e-8)


def rows_of(batch: Batch, perturbed: Tensor) -> Rows:
    """Rows of recorded masks.

    Args:
        batch: of one width.
        perturbed: int64 [B, draws, S].
    """
    draws = perturbed.shape[1]
    made = SPG(SPGConfig(estimation="elbo", draws=draws)).rows(batch, _graded.context_of(batch))
    rows = concatenate(list(made))
    rows.ids = perturbed[rows.owner, rows.draw]
    rows.mask = (rows.ids == batch.mask_token_id) & batch.counted[rows.owner]
    return rows


def _run(algorithm: SPG, logits: Tensor, batch: Batch, rows: Rows, advantages: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().requires_grad_()
    loss, _ = algorithm.loss(_scores(leaf, rows), None, None, rows, advantages, _graded.context_of(batch))
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def _scores(logits: Tensor, rows: Rows) -> Tensor:
    own = token_logps(logits[rows.owner, rows.draw], rows.targets[..., 0])
    return torch.where(rows.mask, own, 0.0)[..., None]


def _case(
    name: str, case: Any, data: Fixture, batch: Batch, rows: Rows, advantages: Tensor
) -> Iterator[Compared]:  # fmt: skip
    algorithm = SPG(SPGConfig(estimation=case["estimation"], exponent=case["beta"], omega=case["mix_weight"]))
    logits = data.tensor("logits")
    bounds = algorithm.bounds(_scores(logits, rows), rows, batch.counted.sum(1).double())
    for sign, found in (("positive", bounds[0]), ("negative", algorithm.negative(*bounds))):
        yield Compared(f"{name}: if {sign}", case[f"estimate_if_{sign}"], found)
        yield Compared(f"{name}: if {sign}, tensor", data.tensor(f"{name}.estimate_if_{sign}"), found)
    loss, gradient = _run(algorithm, logits, batch, rows, advantages)
    yield Compared(f"{name}: loss", case["loss"], loss)
    yield Compared(f"{name}: gradient", data.tensor(f"{name}.grad_logits"), gradient, 2e-6)


def _fits(masks: Tensor, kind: str, batch: Batch, size: int) -> bool:
    """Whether recorded masks are among those that `block_masks.draw` can give."""
    prompt = int(batch.prompt_lengths[0])
    for row in range(len(masks)):
        counted = int(batch.counted[row].sum())
        for mask in masks[row, :, prompt:]:
            if not bool(mask[counted:].all()) or not bool(mask[:counted].any()):
                return False
            starts = range(0, counted, size)
            own = {start: mask[start : min(start + size, counted)] for start in starts}
            whole = kind == "block_all"
            possible = [
                start
                for start in starts
                if bool(mask[start + size :].all()) and bool(own[start].all() if whole else own[start].any())
            ]
            if kind != "random" and not possible:
                return False
    return True
