"""mdpo: loss of one denoising step, step advantages and selection by two published trainers, transfer schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.algorithms.advantages import group_advantages
from dare_bench.dare.algorithms.base import Batch, Context, Rows, Steps
from dare_bench.dare.algorithms.mdpo import MDPO, MDPOConfig, step_advantages
from dare_bench.dare.conformance.algorithms import _steps
from dare_bench.dare.conformance.fixture import Compared, Fixture
from dare_bench.dare.decoding import schedulers
from torch import Tensor


def cases(data: Fixture) -> Iterator[Compared]:
    """The loss of the authors' trainer and of DARE's, the advantages of both, the sampler's schedules."""
    for case in data["cases"]:
        yield from _case(data, case)
    yield from _dare(data)
    yield from _advantages(data["step_advantage"])
    for name, expected in data["transfer_schedules_32_tokens"].items():
        kind, steps = name.split("_")
        yield Compared(f"schedule {name}", expected, _transfers({"uniform": "quota"}.get(kind, kind), int(steps)))


def _batch(data: Fixture) -> Batch:
    """Three responses of one group with the recorded step as their only one."""
    inputs, guesses = data.tensor("input_ids"), data.tensor("target_ids")
    prompt = data["prompt_len"]
    batch = _steps.batch_of(guesses, prompt, torch.zeros_like(guesses), data["mask_id"])
    confidence = torch.nn.functional.pad(data.tensor("confidence"), (prompt, 0))
    assert batch.trace is not None
    batch.trace.steps = Steps(inputs[:, None], guesses[:, None], confidence[:, None], torch.zeros(len(inputs), 1))
    return batch


def _options(case: Any, **changes: Any) -> MDPOConfig:
    fields = {"beta": case["beta"], "eps_low": case["epsilon"], "temperature": case["temperature"],
              "drop_first_dream": case["model_type"] == "Dream"}  # fmt: skip
    return MDPOConfig(**{**fields, **changes})


def _scores(rows: Rows, logits: Tensor, prompt: int) -> Tensor:
    return _steps.logps(rows, lambda row, place: logits[rows.owner[row], place - prompt] / rows.temperature)


def _given(values: Any, rows: Rows, prompt: int) -> Tensor:
    """Recorded log-probabilities [B, L] at the scored places, [B, S, 1]."""
    wide = torch.nn.functional.pad(Fixture.array(values), (prompt, 0))
    return torch.where(rows.mask, wide, 0.0).unsqueeze(-1)


def _case(data: Fixture, case: Any) -> Iterator[Compared]:
    label, prompt, batch = case["label"], data["prompt_len"], _batch(data)
    algorithm = MDPO(_options(case))
    rows = _steps.rows_of(algorithm, batch)
    masked = data.tensor("masked").bool()
    if algorithm.config.drop_first_dream:
        masked[:, 0] = False
    yield Compared(f"{label}: scored places", masked, rows.mask[:, prompt:])
    leaf = Fixture.array(case["policy_logits"]).requires_grad_()
    new = _scores(rows, leaf, prompt)
    expected = Fixture.array(case["expected_per_token_logps"])
    yield Compared(f"{label}: log-probabilities", expected[masked], new[..., 0][rows.mask])
    old = ref = None
    if case["old_per_token_logps"] is not None:
        old = _given(case["old_per_token_logps"], rows, prompt)
    if case["ref_logits"] is not None:
        ref = _scores(rows, Fixture.array(case["ref_logits"]), prompt)
        recorded = Fixture.array(case["expected_ref_per_token_logps"])
        yield Compared(f"{label}: reference", recorded[masked], ref[..., 0][rows.mask])
    advantages = data.tensor("advantages")[:, None]
    loss, _ = algorithm.loss(new, old, ref, rows, advantages, Context(0, batch=batch))
    yield Compared(f"{label}: loss", case["expected_loss_f64"], loss, 1e-6)
    yield Compared(f"{label}: loss in float32", case["expected_loss_official_f32"], loss)
    (gradient,) = torch.autograd.grad(loss, leaf)
    yield Compared(f"{label}: gradient", case["expected_grad_wrt_policy_logits"], gradient, 1e-6)


def _dare(data: Fixture) -> Iterator[Compared]:
    case, prompt, batch = data["cases"][2], data["prompt_len"], _batch(data)
    algorithm = MDPO(_options(case, scored_at="one", lambda_floor="one"))
    rows = _steps.rows_of(algorithm, batch)
    new = _scores(rows, Fixture.array(case["policy_logits"]), prompt)
    old = _given(case["old_per_token_logps"], rows, prompt)
    ref = _scores(rows, Fixture.array(case["ref_logits"]), prompt)
    advantages = data.tensor("advantages")[:, None]
    loss, _ = algorithm.loss(new, old, ref, rows, advantages, Context(0, batch=batch))
    yield Compared("DARE's loss", data["dare_loss_on_case_2"], loss)


def _advantages(case: Any) -> Iterator[Compared]:
    rewards = Fixture.array(case["step_rewards"])
    yield Compared("raw advantages", case["raw_f64"], step_advantages(rewards), 1e-9)
    batch = _steps.batch_of(torch.zeros(rewards.shape, dtype=torch.int64), 0, torch.zeros(rewards.shape).long(), 99)
    assert batch.trace is not None
    batch.trace.steps = Steps(batch.ids, batch.ids, batch.ids, rewards)
    for name, recorded, order in (
        ("official", "expected_normalised_official_eps1e_4_f64", "expected_steps_official_order"),
        ("DARE", "expected_normalised_dare_eps1e_6", "expected_steps_dare_sorted"),
    ):
        algorithm = MDPO(MDPOConfig(delta={"official": 1e-4, "DARE": 1e-6}[name], kept_steps=case["topk"]))
        yield Compared(f"{name} advantages", case[recorded], algorithm.advantages(batch), 1e-6)
        yield Compared(f"{name} steps", sorted(case[order]), algorithm.selected(batch)[0])
    raw = step_advantages(rewards)
    centred = torch.stack([group_advantages(now, batch.groups, "mean") for now in raw.T], 1)
    yield Compared("centred advantages", case["expected_mean_only_dare"], centred, 1e-6)


def _transfers(name: str, steps: int) -> list[int]:
    """Places that each step of a block of 32 commits."""
    left, counts = 32, []
    for step in range(steps):
        now = [torch.tensor([value]) for value in (left, 32, step, steps, 0, 32 - left)]
        counts.append(int(schedulers.schedulers()[name].count(schedulers.ScheduleState(*now))))
        left -= counts[-1]
    return counts
