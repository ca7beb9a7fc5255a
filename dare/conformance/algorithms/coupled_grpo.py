"""coupled_grpo: combined scores, loss and gradient of DiffuCoder's trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.algorithms.base import Batch, Rows
from dare_bench.dare.algorithms.coupled_grpo import CoupledConfig, CoupledGRPO
from dare_bench.dare.conformance.algorithms import _graded
from dare_bench.dare.conformance.fixture import Compared, Fixture
from dare_bench.dare.diffusion.block import concatenate
from torch import Tensor

NOT_COMPARED = {"mask_seeds": "seeds of a generator of the trainer"}


class Recorded(CoupledGRPO):
    """Coupled-GRPO at a recorded masking probability.

    Args:
        config: options.
        ratio: probability of the pair.
    """

    def __init__(self, config: CoupledConfig, ratio: float) -> None:
        super().__init__(config)
        self.ratio = ratio

    def level(self, context: Any, pair: int) -> float:
        """The recorded probability."""
        return self.ratio


def cases(data: Fixture) -> Iterator[Compared]:
    """Advantages, masks, combined scores, losses and gradients."""
    batch = _graded.batch_of(
        data.tensor("prompt_ids"), data.tensor("completion_ids"), data.tensor("completion_mask"), data["mask_id"],
        rewards=data.tensor("rewards"),
    )  # fmt: skip
    advantages = CoupledGRPO(CoupledConfig(advantage="loo")).advantages(batch)
    yield Compared("advantages", data["advantages_leave_one_out"], advantages)
    for inner, ratio in enumerate(data["mask_ratio"]):
        yield from _inner(data, batch, inner, ratio, advantages)


def _inner(data: Fixture, batch: Batch, inner: int, ratio: float, advantages: Tensor) -> Iterator[Compared]:
    prompt, counted = data["prompt_len"], data.tensor("completion_mask").bool()
    rows = _rows(data, batch, inner, ratio)
    noisy = data.tensor("noisy_input_ids")[inner].flatten(0, 1)
    yield Compared(f"inner {inner}: full mask", noisy[: len(batch.ids)], rows.ids[: len(batch.ids)])
    pair = torch.where(rows.ids[len(batch.ids) :] == data["mask_id"], 1, 0).view(2, *batch.ids.shape)
    recorded = torch.stack([data.tensor(f"mask_{half}")[inner] for half in (1, 2)])
    yield Compared(f"inner {inner}: pair of masks", recorded, pair[..., prompt:])
    scores = {}
    for name in ("old", "ref"):
        scores[name] = _scores(data.tensor(f"{name}_logits")[inner], batch, prompt)
        found = CoupledGRPO().surrogate(scores[name], rows, len(batch.ids))[:, prompt:]
        expected = data.tensor(f"expected_{name}_per_token_logps")[:, inner]
        yield Compared(f"inner {inner}: {name} scores", expected[counted], found[counted])
    for case in data["cases"]:
        if case["inner_index"] == inner:
            yield from _case(case, batch, rows, scores, advantages, prompt, ratio)


def _case(
    case: Any, batch: Batch, rows: Rows, scores: dict[str, Tensor], advantages: Tensor, prompt: int, ratio: float
) -> Iterator[Compared]:
    label, counted = case["label"], batch.counted[:, prompt:]
    config = CoupledConfig(beta=case["beta"], eps_low=case["epsilon_low"], eps_high=case["epsilon_high"])
    algorithm = Recorded(config, ratio)
    leaf = Fixture.array(case["policy_logits"]).requires_grad_()
    new = _scores(leaf, batch, prompt)
    found = algorithm.surrogate(new, rows, len(batch.ids))[:, prompt:]
    yield Compared(f"{label}: scores", Fixture.array(case["expected_per_token_logps"])[counted], found[counted])
    loss, _ = algorithm.loss(new, scores["old"], scores["ref"], rows, advantages, _graded.context_of(batch))
    yield Compared(f"{label}: loss", case["expected_loss_f64"], loss, 1e-6)
    yield Compared(f"{label}: loss in float32", case["expected_loss_official_f32"], loss)
    (gradient,) = torch.autograd.grad(loss, leaf)
    yield Compared(f"{label}: gradient", case["expected_grad_wrt_policy_logits"], gradient, 1e-6)


def _rows(data: Fixture, batch: Batch, inner: int, ratio: float) -> Rows:
    """Rows of the recorded masks: weights and layout are the algorithm's own, what is hidden is recorded."""
    rows = concatenate(list(Recorded(CoupledConfig(), ratio).rows(batch, _graded.context_of(batch))))
    rows.ids = data.tensor("noisy_input_ids")[inner].flatten(0, 1)
    rows.mask = (rows.ids == data["mask_id"]) & batch.counted[rows.owner]
    return rows


def _scores(logits: Tensor, batch: Batch, prompt: int) -> Tensor:
    completion = batch.ids[:, prompt:].expand(len(logits), -1, -1)
    return _graded.completion_logps(logits.flatten(0, 1), completion.flatten(0, 1), prompt)
