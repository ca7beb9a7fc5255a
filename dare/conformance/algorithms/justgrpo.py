"""justgrpo: left-to-right rows, log-probabilities, loss and gradient of JustGRPO, computed by two published trainers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dare_bench.dare.algorithms import objectives
from dare_bench.dare.algorithms.justgrpo import JustGRPO, JustGRPOConfig
from dare_bench.dare.algorithms.policy import clipped_tokens
from dare_bench.dare.conformance.algorithms import _steps
from dare_bench.dare.conformance.fixture import Compared, Fixture


def cases(data: Fixture) -> Iterator[Compared]:
    """The loss of the authors' trainer, DARE's packed rows, and DARE's terms per token."""
    yield from _published(data)
    yield from _packed(data)
    yield from _terms(data)


def _published(data: Fixture) -> Iterator[Compared]:
    about, ids, logits = data["config"], data.tensor("generated_ids"), data.tensor("logits_per_position")
    prompt, length = about["prompt_len"], about["gen_length"]
    algorithm = JustGRPO(JustGRPOConfig(eps_low=about["eps"], temperature=about["temperature"], position_chunk=2))
    order = torch.arange(ids.shape[1]).expand(ids.shape)
    batch = _steps.batch_of(ids, prompt, order, about["mask_id"], rewards=data.tensor("rewards"))
    advantages = algorithm.advantages(batch)
    yield Compared("advantages", data["advantages"], advantages)
    rows = _steps.rows_of(algorithm, batch)
    yield Compared("inputs", data.tensor("model_inputs_per_position").flatten(0, 1), rows.ids)
    yield Compared("rows that count", data["valid_samples"], int(rows.owner.unique().numel()))
    yield Compared("scale", data["scale"], rows.weight[rows.mask].unique()[0], 1e-9)
    leaf = logits.clone().requires_grad_()
    new = _steps.logps(rows, lambda row, place: leaf[rows.draw[row], rows.owner[row], place])
    scored = new[..., 0][rows.mask].view(length, len(ids)).T
    yield Compared("log-probabilities", data.tensor("token_logp"), scored)
    loss, _ = algorithm.loss(new, None, None, rows, advantages, _steps.CONTEXT)
    yield Compared("loss", data["total_loss"], loss, 2e-6)
    parts = []
    for step in range(length):
        part = rows.select((rows.draw == step).nonzero()[:, 0])
        parts.append(algorithm.loss(new[rows.draw == step], None, None, part, advantages, _steps.CONTEXT)[0])
    yield Compared("loss of each position", data["per_position_loss"], torch.stack(parts), 2e-6)
    (gradient,) = torch.autograd.grad(loss, leaf)
    yield Compared("gradient", data.tensor("grad_logits_per_position"), gradient, 2e-6)


def _packed(data: Fixture) -> Iterator[Compared]:
    """Prompts and responses of unlike lengths: the packed tokens are the real ones of our rows, position after position."""
    about, padded = data["config"], data.tensor("generated_ids")
    real = data.tensor("pack.attention_mask").bool()
    count, longest = len(padded), data["pack"]["max_seqlen"]
    ids = torch.zeros(count, longest, dtype=torch.int64)
    for row in range(count):
        ids[row, : int(real[row].sum())] = padded[row][real[row]]
    order = torch.arange(longest).expand(ids.shape)
    batch = _steps.batch_of(ids, 0, order, about["mask_id"], rewards=data.tensor("rewards"))
    batch.prompt_lengths, batch.lengths = real[:, : about["prompt_len"]].sum(1), real.sum(1)
    batch.counted = batch.response
    rows = _steps.rows_of(JustGRPO(), batch)
    yield Compared("packed inputs", data.tensor("pack.packed_input")[0], rows.ids[rows.real])
    yield Compared("packed responses", data.tensor("pack.batch_indices"), rows.owner)
    yield Compared("packed positions", data.tensor("pack.relative_positions"), rows.draw)
    yield Compared("packed prompts", data.tensor("pack.prompt_lengths"), batch.prompt_lengths[rows.owner])
    yield Compared("packed targets", data.tensor("pack.target_ids"), rows.targets[..., 0][rows.mask])
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), rows.real.sum(1).cumsum(0)])
    yield Compared("packed bounds", data.tensor("pack.cu_seqlens"), bounds)
    yield Compared("packed offsets", data.tensor("pack.target_offsets"), rows.mask[rows.real].nonzero()[:, 0])


def _terms(data: Fixture) -> Iterator[Compared]:
    case = data["dare_terms"]
    options = JustGRPOConfig(eps_low=case["clip_low"], eps_high=case["clip_high"], dual_clip=case["clip_ratio_c"])
    new, old = Fixture.array(case["log_probs"]), Fixture.array(case["old_log_probs"])
    advantages = Fixture.array(case["advantages"])
    per_token, metrics = clipped_tokens(new, old, None, torch.ones_like(new, dtype=torch.bool), advantages, options)
    yield Compared("terms", case["pg_losses"], per_token)
    yield Compared("clipped share", Fixture.array(case["clip_indicators"]).mean(), metrics["clip_fraction"])
    open_below = JustGRPOConfig(eps_low=case["clip_low"], eps_high=case["clip_high"])
    loose, _ = clipped_tokens(new, old, None, torch.ones_like(new, dtype=torch.bool), advantages, open_below)
    yield Compared("dual clip acts", Fixture.array(case["lower_clip"]).bool(), per_token != loose)
    yield Compared("k3 to the rollout policy", case["ppo_kl_k3"], objectives.kl(new, old, "k3"))
