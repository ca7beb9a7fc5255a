"""TraceRL: policy gradient on shrunken denoising traces, with several updates per rollout (arXiv 2509.06949)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.options import ClipOptions, check_choice, check_range
from dare_bench.dare.algorithms.policy import GroupPolicy, clipped_tokens, weighted_sum
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from dare_bench.dare import randomness
    from dare_bench.dare.algorithms import objectives, step_weights, trajectories
    from torch import Tensor
else:
    step_weights = lazy_import("dare_bench.dare.algorithms.step_weights")
    torch = lazy_import("torch")
    objectives = lazy_import("dare_bench.dare.algorithms.objectives")
    randomness = lazy_import("dare_bench.dare.randomness")
    trajectories = lazy_import("dare_bench.dare.algorithms.trajectories")

#: Option -> inclusive bounds.
_BOUNDS = {"shrink": (0, float("inf")), "lowest_success": (0, 1), "highest_success": (0, 1),
           "near_limit": (0, float("inf")), "post_num": (0, float("inf"))}  # fmt: skip


@dataclass(frozen=True)
class TraceRLConfig(ClipOptions):
    """Options of `trace_rl`, beside those of every clipped policy gradient.

    Attributes:
        beta: weight of the KL to the policy of the rollout (no reference is kept).
        shrink: neighbouring steps that are replayed as one (of a block, or of the response under full attention); 0 = all.
        reduction: how a row's tokens add up. ``step``: mean over its targets (the paper); ``length``: sum / longest
            response of the batch; ``published``: what the code does, ``length`` on block families and ``step`` under full
            attention, there with a KL that is summed and not divided. Rows are averaged.
        split_rows: every inner iteration takes its own share of the rows (one pass, several updates); else all of them.
        lowest_success, highest_success: prompts whose share of right responses lies outside are dropped.
        wrong: reward of a wrong response; above it a response is right.
        near_limit: responses that end within so many tokens of the longest possible one are wrong; null = off.
        post_num: tokens behind the stop token that are targets too.
    """

    advantage: str = "zpop"
    beta: float = 0.01
    shrink: int = 1
    reduction: str = "published"
    split_rows: bool = True
    lowest_success: float = 0.0
    highest_success: float = 1.0
    wrong: float = 0.0
    near_limit: int | None = None
    post_num: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, _BOUNDS)
        check_choice(self, {"reduction": ("published", "step", "length"), "counted": ("eos",)})


_SDAR = {"group_size": 16, "inner_iterations": 16, "temperature": 1.0, "shrink": 1, "beta": 0.01, "eps_low": 0.2,
         "lowest_success": 0.2, "highest_success": 0.8, "near_limit": 5}  # fmt: skip
_TRAIN = {"lr": 1e-6, "betas": (0.9, 0.999), "weight_decay": 0.0, "grad_clip": 1.0}


@register(
    "trace_rl",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=TraceRLConfig,
    presets={
        "paper": {**_SDAR, "reduction": "step"},
        "repo": _SDAR,
        "repo-full-attention": {**_SDAR, "group_size": 8, "inner_iterations": 8, "temperature": 0.8, "shrink": 8},
    },
    train_presets={
        "paper": {**_TRAIN, "batch_size": 64},
        "repo": {**_TRAIN, "batch_size": 64},
        "repo-full-attention": {**_TRAIN, "batch_size": 32},
    },
)
class TraceRL(GroupPolicy):
    """TraceRL: clipped policy gradient on shrunken denoising traces, with a KL to the policy of the rollout.

    SDAR rollouts of the paper: 2000 tokens in blocks of 4, ``selector: threshold`` at 0.9, no top-k, 80 rollouts. LLaDA:
    512 tokens in blocks of 32, one token per step, prefix cache, 50 rollouts. DARE has no TraceRL. The published trainer
    makes several updates in one pass over a rollout's rows (`split_rows`); here their shares are equal and drawn.

    Source:
        arXiv 2509.06949; Gen-Verse/dLLM-RL `rl_sdar.py`, `rl_llada.py`.
    """

    name = "trace_rl"
    needs = Needs(rollout="policy", trace="step_map", old=True, ref="none")
    separable = True
    Config = TraceRLConfig

    def graded(self, batch: Batch) -> Tensor:
        """Rewards float [B], those of responses near the limit set to `wrong`."""
        assert batch.rewards is not None, f"{self.name} needs rewards"
        if self.config.near_limit is None:
            return batch.rewards
        limit = (batch.trace.limit if batch.trace else 0) or trajectories.longest_response(batch)
        late = batch.counted.sum(1) >= limit - self.config.near_limit
        return torch.where(late, self.config.wrong, batch.rewards)

    def kept(self, batch: Batch) -> Tensor:
        """bool [B], responses to prompts whose success rate lies inside the bounds."""
        if self.config.lowest_success <= 0 and self.config.highest_success >= 1:
            return torch.ones(len(batch.ids), dtype=torch.bool)
        right = (self.graded(batch) > self.config.wrong).double()
        _, group, sizes = batch.groups.unique(return_inverse=True, return_counts=True)
        rate = torch.zeros(len(sizes), dtype=torch.float64).index_add(0, group, right) / sizes
        # Bounds like 0.2 of 5 responses are meant to hold with rounding.
        inside = (rate > self.config.lowest_success - 1e-9) & (rate < self.config.highest_success + 1e-9)
        return inside[group]

    def advantages(self, batch: Batch) -> Tensor:
        """Group-relative advantages float [B]; 0 where the prompt is dropped."""
        values = super().advantages(replace(batch, rewards=self.graded(batch)))
        return torch.where(self.kept(batch), values, 0.0)

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """One row per response and shrunken step (block families: its place within blocks), of kept prompts."""
        recorded = trajectories.step_map(batch, self.name)
        ends = (batch.prompt_lengths + batch.counted.sum(1))[:, None]
        columns = torch.arange(batch.ids.shape[1])
        behind = batch.response & (columns >= ends) & (columns < ends + self.config.post_num)
        behind &= batch.counted.any(1)[:, None]
        # A tail that was never decoded comes after every step.
        recorded = torch.where(behind & (recorded < 0), recorded.max() + 1, recorded)
        blocks = trajectories.decoding_blocks(batch) if batch.block_length else None
        steps = trajectories.step_ranks(recorded, blocks, self.config.shrink)
        targets = (batch.counted | behind) & (steps >= 0) & self.kept(batch)[:, None]
        if self.config.split_rows and context.inner_iterations > 1:
            targets = self._share(batch, steps, targets, context)
        weight = self._weight(batch, steps, targets)
        return trajectories.step_rows(batch, steps, targets, weight)

    def _weight(self, batch: Batch, steps: Tensor, targets: Tensor) -> Tensor:
        if self._by_length(batch):
            count = max(len(trajectories.row_pairs(steps, targets)), 1)
            return targets.double() / (count * trajectories.longest_response(batch))
        owner = torch.arange(len(steps))[:, None]
        return step_weights.balanced_weights(owner * (steps.max().clamp(min=0) + 1) + steps, targets)

    def _by_length(self, batch: Batch) -> bool:
        return self.config.reduction == "length" or (self.config.reduction == "published" and batch.block_length > 0)

    def _share(self, batch: Batch, steps: Tensor, targets: Tensor, context: Context) -> Tensor:
        """Targets in the rows that are this inner iteration's share."""
        pairs = trajectories.row_pairs(steps, targets)
        draws = randomness.uniform(replace(context, inner=0).seeds("rows", batch), int(steps.max().clamp(min=0)) + 1)
        step, owner = pairs[draws[pairs[:, 1], pairs[:, 0]].argsort()].unbind(1)
        share = torch.full(draws.shape, -1)
        share[owner, step] = torch.arange(len(pairs)) * context.inner_iterations // max(len(pairs), 1)
        return targets & (share.gather(1, steps.clamp(min=0)) == context.inner)

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Clipped surrogate per token + beta x KL to the rollout policy, weighted by the rows."""
        logp, before = new[..., 0], (new.detach() if old is None else old)[..., 0]
        options = replace(self.config, beta=0.0)
        per_token, metrics = clipped_tokens(logp, before, None, rows.mask, advantages[rows.owner], options)
        divergence = objectives.kl(logp, before, self.config.kl)
        metrics["kl"] = float((divergence.detach() * rows.mask).sum() / rows.mask.sum().clamp(min=1))
        if self.config.reduction == "published" and rows.layout == "full":
            divergence = divergence * rows.mask.sum(1, keepdim=True)  # undoes the mean over a row's targets
        loss = weighted_sum(per_token + self.config.beta * divergence, rows)
        return loss, metrics | {"loss": float(loss.detach())}
