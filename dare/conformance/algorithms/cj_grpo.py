"""cj_grpo: trajectory loss of the authors' trainer, its sampler's schedules, and DARE's block-parallel replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.algorithms.base import Batch, Rows
from dare_bench.dare.algorithms.cj_grpo import CJGRPO, CJGRPOConfig
from dare_bench.dare.conformance.algorithms import _steps
from dare_bench.dare.conformance.fixture import Compared, Fixture
from dare_bench.dare.decoding import schedulers, weightings
from torch import Tensor


def cases(data: Fixture) -> Iterator[Compared]:
    """Rows and losses of the trajectory, schedules of the sampler, rows and weights of block families."""
    yield from _trajectory(data)
    yield from _schedules(data)
    yield from _block_parallel(data["dare_block_parallel"], data["mask_id"])


def _trajectory(data: Fixture) -> Iterator[Compared]:
    completion, states, unmasked = (data.tensor(name) for name in ("completion_ids", "trajectory", "unmask_positions"))
    prompt = data["prompt_len"]
    ids = torch.cat([data.tensor("prompt_ids"), completion], 1)
    steps = torch.cat([torch.full_like(ids[:, :prompt], -1), unmasked.long().argmax(0)], 1)
    batch = _steps.batch_of(ids, prompt, steps, data["mask_id"])
    rows = _steps.rows_of(CJGRPO(), batch)
    yield Compared("states", states[:-1].flatten(0, 1), rows.ids)
    yield Compared("last state", states[-1], ids)
    yield Compared("unmasked", unmasked.flatten(0, 1).bool(), rows.mask[:, prompt:])
    scores = {}
    for name in ("old", "ref"):
        scores[name] = _scores(rows, data.tensor(f"{name}_logits"), prompt)
        expected = data.tensor(f"expected_{name}_per_token_logps")
        yield Compared(f"{name} log-probabilities", *_unmasked(rows, expected, scores[name], prompt))
    for case in data["cases"]:
        yield from _case(case, batch, rows, scores, data.tensor("advantages"))


def _scores(rows: Rows, logits: Tensor, prompt: int) -> Tensor:
    return _steps.logps(rows, lambda row, place: logits[rows.draw[row], rows.owner[row], place - prompt])


def _unmasked(rows: Rows, recorded: Tensor, found: Tensor, prompt: int) -> tuple[Tensor, Tensor]:
    """Both at the tokens that a step committed; at the others the trainer scores what they stay, the mask."""
    return recorded[rows.draw, rows.owner][rows.mask[:, prompt:]], found[..., 0][rows.mask]


def _case(case: Any, batch: Batch, rows: Rows, scores: dict[str, Tensor], advantages: Tensor) -> Iterator[Compared]:
    label, prompt = case["label"], int(batch.prompt_lengths[0])
    leaf = Fixture.array(case["policy_logits"]).requires_grad_()
    new = _scores(rows, leaf, prompt)
    first = case["num_iterations"] == 1  # then the old policy is the policy itself
    old, ref = None if first else scores["old"], scores["ref"]
    algorithm = CJGRPO(CJGRPOConfig(beta=case["beta"], eps_low=case["epsilon"]))
    loss, _ = algorithm.loss(new, old, ref, rows, advantages, _steps.CONTEXT)
    expected = Fixture.array(case["expected_per_token_logps"])
    yield Compared(f"{label}: log-probabilities", *_unmasked(rows, expected, new, prompt))
    yield Compared(f"{label}: loss", case["expected_loss_f64"], loss, 1e-6)
    yield Compared(f"{label}: loss in float32", case["expected_loss_official_f32"], loss)
    if case["expected_mean_kl"] is not None:
        only_kl = CJGRPO(CJGRPOConfig(beta=1.0, eps_low=case["epsilon"]))
        divergence, _ = only_kl.loss(new, old, ref, rows, 0 * advantages, _steps.CONTEXT)
        yield Compared(f"{label}: KL", case["expected_mean_kl"], divergence)
    # The trainer counts tokens whose ratio is outside of the range and whose loss is not clipped.
    ratio = torch.ones_like(new) if old is None else (new - old).exp()
    ratio, advantage, eps = ratio[..., 0].detach(), advantages[rows.owner][:, None], case["epsilon"]
    loose = ratio * advantage < ratio.clamp(1 - eps, 1 + eps) * advantage
    yield Compared(f"{label}: loose share", case["expected_clip_ratio"], (rows.weight * loose * rows.mask).sum(), 1e-6)
    (gradient,) = torch.autograd.grad(loss, leaf)
    yield Compared(f"{label}: gradient", case["expected_grad_wrt_policy_logits"], gradient, 1e-6)


def _schedules(data: Fixture) -> Iterator[Compared]:
    for name, expected in data["ass_transfer_counts"].items():
        sizes = [int(size) for size in name.split("_blocks")[1].split("-")]
        layout = schedulers.ass_layout(sum(sizes), sum(sizes), blocks=len(sizes))
        yield Compared(f"ass {name} blocks", sizes, [size for size, _ in layout])
        yield Compared(f"ass {name}", expected, [count for block in layout for count in _transfers(*block)])
    factors = data["eoser_confidence_factors"]
    yield Compared("eoser, even", factors["linear_gamma0_4_steps8"], _factors(8, min_gamma=0.4))
    doubling = _factors(7, min_gamma=0.01, schedule="doubling")
    yield Compared("eoser, doubling", factors["ass_gamma0_01_steps7"], doubling)


def _transfers(size: int, steps: int) -> list[int]:
    """Positions that each step of a block commits."""
    left, counts = size, []
    for step in range(steps):
        now = [torch.tensor([value]) for value in (left, size, step, steps, 0, size - left)]
        counts.append(int(schedulers.ass(schedulers.ScheduleState(*now), blocks=1)))
        left -= counts[-1]
    return counts


def _factors(steps: int, **options: Any) -> Tensor:
    """What a confidence of 1 at an end token becomes in each step."""
    eoser = weightings.make("eoser", options, steps, 1, 1, "cpu")
    one, zero = torch.ones(steps, 1, dtype=torch.float64), torch.zeros(steps, 1, dtype=torch.int64)
    total = torch.full((steps,), steps)
    return eoser.weigh(one, zero, torch.ones(steps, 1, dtype=torch.bool), torch.arange(steps), total)[:, 0]


def _block_parallel(case: Any, mask_token_id: int) -> Iterator[Compared]:
    ids, prompt = Fixture.array(case["clean_input_ids"]), case["prompt_len"]
    revealed = Fixture.array(case["trajectory"])[0]
    steps = torch.where(revealed.any(0), revealed.long().argmax(0), -1)[None]
    batch = _steps.batch_of(ids, prompt, steps, mask_token_id, block_length=case["block_size"])
    rows = _steps.rows_of(CJGRPO(), batch)
    weights = torch.where(rows.mask, rows.weight, 0.0)
    # Recorded in float32.
    yield Compared("block-parallel weights", case["expected_token_weights"], weights[None])
    yield Compared("block-parallel mass of steps", case["expected_step_mass"], weights.sum(1))
    row = case["local_step"]
    head = ids[0, :prompt]
    yield Compared("block-parallel input", case["expected_noisy_input_ids"][0], torch.cat([head, rows.ids[row]]))
    targets = torch.cat([torch.zeros_like(head), rows.mask[row].long()])
    yield Compared("block-parallel targets", case["expected_target_mask"][0], targets)
