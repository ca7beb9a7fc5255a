"""wd1: weights, losses and gradients of the published trainer, and of its positive-only variant."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dare_bench.dare.algorithms.objectives import token_logps
from dare_bench.dare.algorithms.wd1 import WD1, WD1Config
from dare_bench.dare.conformance.algorithms import _graded
from dare_bench.dare.conformance.fixture import Compared, Fixture


def cases(data: Fixture) -> Iterator[Compared]:
    """What is read, token scores, and per case weights, loss and gradient."""
    ids, perturbed, counted = (data.tensor(name) for name in ("input_ids", "perturbed", "completion_mask"))
    config = data["config"]
    width, mask_id = config["prompt_len"], config["mask_id"]
    yield Compared("prompt mask", config["p_mask_prompt"], WD1Config().prompt_mask)
    batch = _graded.batch_of(ids[:, :width], ids[:, width:], counted, mask_id)
    context = _graded.context_of(batch)
    for name, case in data["cases"].items():
        # The mean of these advantages is 0: as rewards they are their own advantages.
        batch.rewards = Fixture.array(case["advantages"])
        algorithm = WD1(WD1Config(parts="positive" if name.startswith("wd1_positive_only") else "both"))
        (rows,) = algorithm.rows(batch, context)
        rows.ids[:, :width] = perturbed[:, :width]  # drawn by a generator of the trainer
        yield Compared(f"{name}: what is read", perturbed, rows.ids)
        for part, found in zip(("w_pos", "w_neg"), algorithm.weights(batch.rewards, batch.groups), strict=True):
            yield Compared(f"{name}: {part}", case[part], found)
        leaf = data.tensor("logits").requires_grad_()
        new = torch.where(rows.mask, token_logps(leaf, batch.ids), 0.0)[..., None]
        # The trainer scores every completion token and counts some.
        every = token_logps(leaf, batch.ids)[:, width:]
        yield Compared(f"{name}: scores", data.tensor("token_logp"), every)
        loss, _ = algorithm.loss(new, None, None, rows, algorithm.advantages(batch), context)
        yield Compared(f"{name}: loss", case["loss"], loss)
        (gradient,) = torch.autograd.grad(loss, leaf)
        yield Compared(f"{name}: gradient", data.tensor(f"{name}.grad_logits"), gradient, 2e-6)
        yield Compared(f"{name}: largest gradient", case["max_abs_grad"], gradient.abs().max())
