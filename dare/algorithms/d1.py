"""d1 / diffu-GRPO: policy gradient on a one-forward likelihood (arXiv 2504.12216)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from dare_bench.dare.algorithms import advantages as group
    from dare_bench.dare.algorithms import objectives
    from dare_bench.dare.diffusion import block, corruption
    from torch import Tensor
else:
    torch = lazy_import("torch")
    group = lazy_import("dare_bench.dare.algorithms.advantages")
    objectives = lazy_import("dare_bench.dare.algorithms.objectives")
    block = lazy_import("dare_bench.dare.diffusion.block")
    corruption = lazy_import("dare_bench.dare.diffusion.corruption")


@dataclass(frozen=True)
class D1Config:
    """Options of `d1`.

    Attributes:
        group_size: responses per prompt (G).
        inner_iterations: optimiser passes per rollout batch (mu), each with its own prompt masks.
        prompt_mask: probability with which a prompt token is masked in the surrogate.
        eps_low, eps_high: ratio clip; null eps_high = eps_low.
        dual_clip: bound of the loss at negative advantages, or null.
        beta: weight of the KL to the reference; 0 = no reference is scored.
        kl: estimate, ``k1``, ``k2`` or ``k3``.
        advantage: ``mean`` (paper), ``std`` or ``loo``.
        aggregation: ``token-mean`` (all published numbers) or ``seq-mean-token-mean`` (paper's formula).
        temperature: rollout temperature; the surrogate itself is taken at temperature 1.
    """

    group_size: int = 8
    inner_iterations: int = 1
    prompt_mask: float = 0.15
    eps_low: float = 0.2
    eps_high: float | None = None
    dual_clip: float | None = None
    beta: float = 0.0
    kl: str = "k3"
    advantage: str = "mean"
    aggregation: str = "token-mean"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name, low, high in (("prompt_mask", 0, 1), ("eps_low", 0, 1), ("beta", 0, float("inf"))):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}: {value!r}; allowed: {low} to {high}")
        for name, minimum in (("group_size", 1), ("inner_iterations", 1)):
            if getattr(self, name) < minimum:
                raise ValueError(f"{name}: {getattr(self, name)!r}; allowed: at least {minimum}")
        for name, allowed in (
            ("advantage", ("mean", "std", "loo")),
            ("kl", ("k1", "k2", "k3")),
            ("aggregation", ("token-mean", "seq-mean-token-mean")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: {getattr(self, name)!r}; allowed: {', '.join(allowed)}")
        if self.advantage == "std" and self.group_size < 2:
            raise ValueError("advantage: 'std' with group_size 1; allowed: group_size 2 or more, or 'mean'")


@register(
    "d1",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=D1Config,
    presets={
        "paper": {"advantage": "mean", "aggregation": "seq-mean-token-mean", "prompt_mask": 0.15},
        "repo": {"group_size": 6, "inner_iterations": 12, "eps_low": 0.5, "beta": 0.04, "temperature": 0.9},
        "dare": {"group_size": 8, "inner_iterations": 1, "eps_low": 0.2, "dual_clip": 3.0, "advantage": "std",
                 "temperature": 0.6},
    },
    train_presets={
        "repo": {"lr": 3e-6, "betas": (0.9, 0.99), "weight_decay": 0.1, "grad_clip": 0.2, "batch_size": 6},
        "dare": {"lr": 5e-7, "betas": (0.9, 0.999), "weight_decay": 0.01, "grad_clip": 1.0, "batch_size": 16},
    },
)  # fmt: skip
class D1:
    """Diffu-GRPO: token-level clipped policy gradient on the fully masked completion (block families: fully masked blocks).

    Under full attention the whole completion is masked. On block families every block is fully masked given the clean
    earlier blocks, in the doubled layout: a block model never meets a completion whose later blocks are masked beside
    earlier ones, and this is its one-forward likelihood.

    Source:
        arXiv 2504.12216; dllm-reasoning/d1 `diffu_grpo_trainer.py`.
    """

    name = "d1"
    needs = Needs(rollout="policy", old=True, ref="frozen")
    separable = False

    def __init__(self, config: D1Config | None = None) -> None:
        self.config = config or D1Config()
        if self.config.beta == 0:
            self.needs = Needs(rollout="policy", old=True, ref="none")

    def advantages(self, batch: Batch) -> Tensor:
        """Group-relative advantages, float [B]."""
        assert batch.rewards is not None, "d1 needs rewards"
        return group.group_advantages(batch.rewards, batch.groups, self.config.advantage)

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """One row per response: completion fully masked, each prompt token masked with probability `prompt_mask`."""
        prompt = batch.real & ~batch.response
        probability = torch.full((len(batch.ids),), self.config.prompt_mask, dtype=torch.float64)
        hidden = corruption.bernoulli_mask(context.seeds("prompt_mask", batch), probability, prompt)
        clean = corruption.apply_mask(batch.ids, hidden, batch.mask_token_id)
        noisy = corruption.apply_mask(clean, batch.response, batch.mask_token_id)
        weight = torch.ones(batch.ids.shape, dtype=torch.float64)
        return [block.rows_from(batch, noisy, batch.counted, weight, clean=clean)]

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Clipped surrogate per token + beta x KL, reduced over counted tokens."""
        options = self.config
        logp = new[..., 0]
        before = logp.detach() if old is None else old[..., 0]
        advantage = advantages[rows.owner].to(logp.dtype)[:, None]
        per_token = objectives.ppo_token_loss(
            logp,
            before,
            advantage,
            eps_low=options.eps_low,
            eps_high=options.eps_high,
            dual_clip=options.dual_clip,
        )
        metrics: dict[str, float] = {}
        if options.beta:
            assert ref is not None, "beta > 0 needs a reference"
            divergence = objectives.kl(logp, ref[..., 0], options.kl)
            per_token = per_token + options.beta * divergence
            metrics["kl"] = float(objectives.aggregate(divergence.detach(), rows.mask, options.aggregation))
        loss = objectives.aggregate(per_token, rows.mask, options.aggregation)
        ratio = (logp.detach() - before).clamp(-objectives.MAX_LOG_RATIO, objectives.MAX_LOG_RATIO).exp()
        high = options.eps_low if options.eps_high is None else options.eps_high
        clipped = ((ratio < 1 - options.eps_low) & (advantage < 0)) | ((ratio > 1 + high) & (advantage > 0))
        counted = rows.mask.sum().clamp(min=1)
        metrics |= {
            "loss": float(loss.detach()),
            "clip_fraction": float((clipped & rows.mask).sum() / counted),
            "ratio_mean": float((ratio * rows.mask).sum() / counted),
        }
        return loss, metrics
