"""vrpo_dpo: estimates, scores and losses of VRPO on recorded draws, by formula and by two published implementations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dare_bench.dare.algorithms import estimators
from dare_bench.dare.algorithms.base import Batch, Rows
from dare_bench.dare.algorithms.vrpo import VRPO, VRPOConfig
from dare_bench.dare.conformance.algorithms import _elbo, _steps
from dare_bench.dare.conformance.fixture import Compared, Fixture
from dare_bench.dare.diffusion.block import concatenate
from torch import Tensor

SIDES = ("chosen", "rejected")


def cases(data: Fixture) -> Iterator[Compared]:
    """Each pair, both pairs in one loss, and the mask counts."""
    plain = VRPOConfig(beta=data["beta"], draws=data["n"], sft_weight=0.0)
    batch, rows, logps = _scored(data, data["pairs"])
    for number, pair in enumerate(data["pairs"]):
        yield from _pair(data, pair, number, plain)
    for key, weight in (("expected_mean_loss", 0.0), ("expected_mean_loss_with_sft_term", data["sft_weight"])):
        algorithm = VRPO(VRPOConfig(beta=data["beta"], draws=data["n"], sft_weight=weight))
        yield Compared(key, data[key], _loss(algorithm, batch, rows, logps)[0], 1e-6)
    for case in data["budget_draws"]:
        counts = Fixture.array(case["num_masked_llada"])
        total = torch.tensor([case["target_len"]])
        found = estimators.stratified_counts(counts[:1], total, case["n"])[0]
        name = f"counts {case['torch_manual_seed']}, {case['target_len']}, {case['n']}"
        yield Compared(name, counts, found)
        yield Compared(f"{name}, DARE", case["num_masked_dare"], found)


def _loss(algorithm: VRPO, batch: Batch, rows: Rows, logps: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, float]]:
    new, ref = logps
    return algorithm.loss(new, None, ref, rows, algorithm.advantages(batch), _elbo.context_of(batch))


def _scored(data: Fixture, pairs: list[Any]) -> tuple[Batch, Rows, tuple[Tensor, Tensor]]:
    """Batch, rows on the recorded masks (draw after draw), log-probabilities of policy and reference."""
    sides = [pair[side] for pair in pairs for side in SIDES]
    lengths = torch.tensor([len(side["sequence"]) for side in sides])
    width = int(lengths.max())
    batch = _elbo.batch_of(
        torch.stack([_wide(Fixture.array(side["sequence"]), width) for side in sides]),
        torch.tensor([side["prompt_len"] for side in sides]),
        data["mask_id"],
        lengths=lengths,
        groups=torch.arange(len(sides)) // 2,
        chosen=[index % 2 == 0 for index in range(len(sides))],
    )
    parts = []
    for draw in range(data["n"]):
        masked = torch.stack([_wide(Fixture.array(side["masked"])[draw].bool(), width) for side in sides])
        counts = torch.tensor([side["num_masked"][draw] for side in sides])
        weight = estimators.count_weights(counts, batch.counted.sum(1))
        parts.append(estimators.elbo_rows(batch, masked, weight, draw, batch.counted))
    rows = concatenate(parts)

    def scores(key: str) -> Tensor:
        logits = torch.nn.utils.rnn.pad_sequence(
            [Fixture.array(side[key]).transpose(0, 1) for side in sides], batch_first=True
        )  # [B, S, n, V]
        return _steps.logps(rows, lambda row, place: logits[rows.owner[row], place, rows.draw[row]])

    return batch, rows, (scores("policy_logits"), scores("ref_logits"))


def _wide(values: Tensor, width: int) -> Tensor:
    return torch.cat([values, values.new_zeros(width - len(values))])


def _pair(data: Fixture, pair: Any, number: int, plain: VRPOConfig) -> Iterator[Compared]:
    batch, rows, logps = _scored(data, [pair])
    terms = [estimators.sum_by_draw(values, rows, 2, data["n"]) for values in logps]
    for side, name in enumerate(SIDES):
        case, label = pair[name], f"pair {number} {name}"
        own = rows.select((rows.owner == side).nonzero()[:, 0])
        yield Compared(f"{label} inputs", case["noisy_input_ids"], own.ids)
        rate = 1 / own.weight.masked_fill(~own.mask, 0).amax(1)
        yield Compared(f"{label} masked share", case["p_mask"], rate, 1e-6)
        for who, found in zip(("policy", "ref"), terms, strict=True):
            yield Compared(f"{label} terms, {who}", case[f"expected_elbo_terms_{who}"], found[side], 1e-6)
            value = estimators.combine(found)[side]
            yield Compared(f"{label} estimate, {who}", case[f"expected_elbo_{who}"], value, 1e-6)
    algorithm = VRPO(plain)
    gains = estimators.combine(terms[0]) - estimators.combine(terms[1])
    loss, metrics = _loss(algorithm, batch, rows, logps)
    yield Compared(
        f"pair {number} score", pair["expected_preference_score"], algorithm.scores(gains, batch)[0][0], 1e-6
    )
    yield Compared(f"pair {number} margin", pair["expected_preference_score"], metrics["margin"], 1e-6)
    yield Compared(f"pair {number} loss", pair["expected_loss"], loss, 1e-6)
    yield Compared(f"pair {number} loss, DARE", pair["expected_loss_compute_dpo_loss_f32"], loss)
    scaled = VRPO(
        VRPOConfig(beta=data["beta"], draws=data["n"], sft_weight=0.0, elbo_norm="padded_length",
                   padded_length=data["response_length_padded_dare"])
    )  # fmt: skip
    found, _ = _loss(scaled, batch, rows, logps)
    yield Compared(f"pair {number} loss, scaled", pair["expected_loss_dare_scaled_by_response_len"], found, 1e-6)
