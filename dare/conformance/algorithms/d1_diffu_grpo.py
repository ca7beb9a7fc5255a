"""d1_diffu_grpo: loss, KL, gradient and scores of d1's published trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.algorithms.d1 import D1, D1Config
from dare_bench.dare.conformance.algorithms import _graded
from dare_bench.dare.conformance.fixture import Compared, Fixture
from torch import Tensor

NOT_COMPARED = {
    "p_mask_prompt": "prompt masks are drawn by a generator of the trainer",
    "mask_seeds": "seeds of a generator of the trainer",
}


def cases(data: Fixture) -> Iterator[Compared]:
    """Advantages, masked completions, scores, losses and gradients."""
    width, completion = data["prompt_len"], data.tensor("completion_ids")
    batch = _graded.batch_of(
        data.tensor("prompt_ids"), completion, data.tensor("completion_mask"), data["mask_id"],
        group_size=data["group_size"], rewards=data.tensor("rewards"),
    )  # fmt: skip
    noisy = data.tensor("noisy_input_ids")
    advantages = D1().advantages(batch)
    yield Compared("advantages", data["advantages"], advantages)
    for case in data["cases"]:
        inner, label = case["inner_index"], case["label"]
        algorithm = D1(D1Config(beta=case["beta"], eps_low=case["epsilon"]))
        (rows,) = algorithm.rows(batch, _graded.context_of(batch, inner))
        yield Compared(f"{label}: completion that is read", noisy[inner][:, width:], rows.ids[:, width:])
        yield Compared(f"{label}: scored", batch.counted, rows.mask)
        scores = {}
        for name in ("old", "ref"):
            logits = data.tensor(f"{name}_logits")[inner]
            scores[name] = _graded.completion_logps(logits, completion, width)
            expected = data.tensor(f"expected_{name}_per_token_logps")[inner]
            yield Compared(f"{label}: {name} scores", expected, scores[name][:, width:, 0])
        leaf = Fixture.array(case["policy_logits"]).requires_grad_()
        new = _graded.completion_logps(leaf, completion, width)
        yield Compared(f"{label}: scores", case["expected_per_token_logps"], new[:, width:, 0])
        context = _graded.context_of(batch, inner)
        loss, metrics = algorithm.loss(new, scores["old"], scores["ref"], rows, advantages, context)
        yield Compared(f"{label}: loss", case["expected_loss_f64"], loss, 1e-6)
        yield Compared(f"{label}: loss in float32", case["expected_loss_official_f32"], loss)
        if case["expected_mean_kl"] is not None:
            yield Compared(f"{label}: KL", case["expected_mean_kl"], metrics["kl"])
        yield _loose(case, new, scores["old"], rows.mask, advantages)
        (gradient,) = torch.autograd.grad(loss, leaf)
        yield Compared(f"{label}: gradient", case["expected_grad_wrt_policy_logits_completion"], gradient, 1e-6)


def _loose(case: Any, new: Tensor, old: Tensor, mask: Tensor, advantages: Tensor) -> Compared:
    """The trainer counts tokens whose ratio is outside of the range and whose loss is not clipped."""
    ratio, advantage, eps = (new - old).exp()[..., 0], advantages[:, None], case["epsilon"]
    loose = ratio * advantage < ratio.clamp(1 - eps, 1 + eps) * advantage
    return Compared(f"{case['label']}: loose share", case["expected_clip_ratio"], loose[mask].double().mean(), 1e-6)
