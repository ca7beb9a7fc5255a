"""What group-relative policy gradients share: advantages, the clipped terms per token and per response, their metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from dare_bench.dare.algorithms import advantages as group
    from dare_bench.dare.algorithms import objectives
    from dare_bench.dare.algorithms.options import ClipOptions
    from torch import Tensor
else:
    torch = lazy_import("torch")
    group = lazy_import("dare_bench.dare.algorithms.advantages")
    objectives = lazy_import("dare_bench.dare.algorithms.objectives")


class GroupPolicy:
    """Base of algorithms on groups of graded responses.

    Subclasses set `name`, `needs`, `separable` and `Config` (a dataclass over `GroupOptions`).
    """

    name: ClassVar[str]
    needs: Needs
    separable: bool = False
    Config: ClassVar[type]
    #: Added to the group's standard deviation under ``advantage: std``.
    delta: float = 1e-6

    def __init__(self, config: Any = None) -> None:
        self.config = self.Config() if config is None else config
        if not getattr(self.config, "beta", 1.0):
            self.needs = replace(self.needs, ref="none")  # without a KL no reference is scored

    def advantages(self, batch: Batch) -> Tensor:
        """Group-relative advantages, float [B]."""
        assert batch.rewards is not None, f"{self.name} needs rewards"
        return group.group_advantages(batch.rewards, batch.groups, self.config.advantage, delta=self.delta)

    def counted(self, batch: Batch) -> Tensor:
        """Response positions that count, bool [B, S]."""
        return batch.counted if self.config.counted == "eos" else batch.response


class TokenPolicy(GroupPolicy):
    """Base: one row per response and a ratio per token; `Config` is a dataclass over `TokenOptions`."""

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Clipped surrogate of each scored token + beta x KL, reduced as the options say."""
        per_token, metrics = clipped_rows(new, old, ref, rows, advantages[rows.owner], self.config)
        loss = objectives.aggregate(per_token, rows.mask, self.config.aggregation)
        return loss, metrics | {"loss": float(loss.detach())}


def clipped_rows(
    new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantage: Tensor, options: ClipOptions
) -> tuple[Tensor, dict[str, float]]:
    """`clipped_tokens` of rows with one candidate: log-probabilities [N, S, 1], advantages of the rows."""
    before, reference = (None if scores is None else scores[..., 0] for scores in (old, ref))
    return clipped_tokens(new[..., 0], before, reference, rows.mask, advantage, options)


def weighted_sum(per_token: Tensor, rows: Rows) -> Tensor:
    """Sum of the scored tokens' losses [N, S] times the rows' weights, in float64."""
    return (torch.where(rows.mask, rows.weight, 0.0) * per_token).sum()


def clipped_sum(
    new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, options: ClipOptions
) -> tuple[Tensor, dict[str, float]]:
    """Clipped surrogate + beta x KL of rows whose weights hold every normaliser, with its metrics.

    Args:
        new, old, ref: [N, S, K].
        rows: with their owners in the batch.
        advantages: [B].
        options: clip, KL.
    """
    per_token, metrics = clipped_rows(new, old, ref, rows, advantages[rows.owner], options)
    loss = weighted_sum(per_token, rows)
    return loss, metrics | {"loss": float(loss.detach())}


def clipped_tokens(
    logp: Tensor, old: Tensor | None, ref: Tensor | None, mask: Tensor, advantage: Tensor, options: ClipOptions
) -> tuple[Tensor, dict[str, float]]:
    """Clipped surrogate of each token, plus beta times its KL.

    Args:
        logp: [N, S].
        old, ref: [N, S]; null old = the policy itself (ratio 1); ref is needed where ``options.beta`` > 0.
        mask: bool [N, S], scored tokens (metrics are means over them).
        advantage: [N] or broadcastable to [N, S].
        options: clip, KL.

    Returns:
        Loss per token [N, S], to be reduced by the caller, and metrics.
    """
    before = logp.detach() if old is None else old
    advantage = advantage.to(logp.dtype)
    advantage = advantage[:, None] if advantage.dim() == 1 else advantage
    per_token = objectives.ppo_token_loss(
        logp,
        before,
        advantage,
        eps_low=options.eps_low,
        eps_high=options.eps_high,
        dual_clip=options.dual_clip,
    )
    counted = mask.sum().clamp(min=1)
    metrics = _ratio_metrics(logp.detach() - before, advantage, mask, counted, options)
    if options.beta:
        assert ref is not None, "beta > 0 needs a reference"
        divergence = objectives.kl(logp, ref, options.kl)
        per_token = per_token + options.beta * divergence
        metrics["kl"] = float((divergence.detach() * mask).sum() / counted)
    return per_token, metrics


def clipped_responses(log_ratio: Tensor, advantage: Tensor, options: ClipOptions) -> tuple[Tensor, dict[str, float]]:
    """Clipped surrogate with one ratio per response, computed on the log scale so that no ratio overflows.

    Args:
        log_ratio: [B], log of the ratio.
        advantage: [B].
        options: clip (bounds inclusive: a ratio at its bound keeps its gradient).

    Returns:
        Loss per response [B] and metrics.
    """
    advantage = advantage.to(log_ratio.dtype)
    high = options.eps_low if options.eps_high is None else options.eps_high
    lowest = torch.log1p(log_ratio.new_tensor(-options.eps_low)) if options.eps_low < 1 else -torch.inf
    limit = torch.finfo(log_ratio.dtype).max ** 0.5
    up = log_ratio.clamp(max=float(torch.log1p(log_ratio.new_tensor(high))))
    down = log_ratio.clamp(min=float(lowest), max=float(torch.log(log_ratio.new_tensor(limit))))
    ratio = torch.where(advantage >= 0, up, down).exp()
    loss = -ratio * advantage
    if options.dual_clip is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -options.dual_clip * advantage), loss)
    everywhere = torch.ones_like(log_ratio, dtype=torch.bool)
    counted = everywhere.sum().clamp(min=1)
    return loss, _ratio_metrics(log_ratio.detach(), advantage, everywhere, counted, options)


def _ratio_metrics(
    log_ratio: Tensor, advantage: Tensor, mask: Tensor, counted: Tensor, options: ClipOptions
) -> dict[str, float]:
    bound = objectives.MAX_LOG_RATIO
    ratio = log_ratio.clamp(-bound, bound).exp()
    high = options.eps_low if options.eps_high is None else options.eps_high
    clipped = ((ratio < 1 - options.eps_low) & (advantage < 0)) | ((ratio > 1 + high) & (advantage > 0))
    metrics = {
        "clip_fraction": float((clipped & mask).sum() / counted),
        "ratio_mean": float((ratio * mask).sum() / counted),
    }
    if options.dual_clip is not None:
        bounded = (ratio > options.dual_clip) & (advantage < 0)
        metrics["dual_clip_fraction"] = float((bounded & mask).sum() / counted)
    return metrics
