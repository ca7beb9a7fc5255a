"""Policy gradients with one ratio per response, exp((E - E_old) / norm), where E estimates the log-likelihood from draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Context, Rows
from dare_bench.dare.algorithms.options import ClipOptions, check_range
from dare_bench.dare.algorithms.policy import GroupPolicy, clipped_responses
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from dare_bench.dare.algorithms import estimators, objectives
    from torch import Tensor
else:
    torch = lazy_import("torch")
    estimators = lazy_import("dare_bench.dare.algorithms.estimators")
    objectives = lazy_import("dare_bench.dare.algorithms.objectives")


@dataclass(frozen=True)
class SequenceOptions(ClipOptions):
    """Options of algorithms with one ratio per response.

    Attributes:
        draws: Monte-Carlo draws per response (m).
    """

    draws: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, {"draws": (1, float("inf"))})


class SequencePolicy(GroupPolicy):
    """Base: subclasses make rows whose weighted log-probabilities add up to E per draw, and give the divisor.

    A method with another estimator overrides `rows`, and `draw_weights` where its draws do not count alike.
    """

    def draw_weights(self) -> Tensor | None:
        """Weights of the draws, [m]; null = equal."""
        return None

    def norm(self, lengths: Tensor) -> Tensor:
        """What differences of E are divided by, [B], from the counted tokens int64 [B]."""
        return torch.ones_like(lengths)

    def estimate(self, logp: Tensor, rows: Rows, responses: int) -> Tensor:
        """E of every response, float64 [B], from log-probabilities [N, S, K]."""
        weights = self.draw_weights()
        draws = self.config.draws if weights is None else len(weights)
        return estimators.combine(estimators.sum_by_draw(logp.double(), rows, responses, draws), weights)

    def divergence(self, value: Tensor, ref: Tensor, norm: Tensor) -> Tensor:
        """KL of each response, [B], from estimates under policy and reference: of the raw ones, divided by the norm."""
        return sequence_kl(value, ref, self.config.kl) / norm

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Clipped ratios + beta x KL / norm, averaged over the responses that have counted tokens."""
        assert context.batch is not None, f"{self.name} needs the batch of its rows"
        lengths = self.counted(context.batch).sum(1)
        used = lengths > 0
        norm = self.norm(lengths).clamp(min=1)[used]
        value = self.estimate(new, rows, len(lengths))[used]
        # The first pass has the weights of the rollout. Rounding must not decide what a clip range of no width lets through.
        same = old is None or context.inner == 0
        before = value.detach() if same else self.estimate(old, rows, len(lengths))[used]
        terms, metrics = clipped_responses((value - before) / norm, advantages[used], self.config)
        count = used.sum().clamp(min=1)
        metrics |= {
            "elbo_per_token": float((value.detach() / lengths[used]).sum() / count),
            "kl_old": float(((before - value.detach()) / norm).sum() / count),
        }
        if self.config.beta:
            assert ref is not None, "beta > 0 needs a reference"
            divergence = self.divergence(value, self.estimate(ref, rows, len(lengths))[used], norm)
            terms = terms + self.config.beta * divergence
            metrics["kl"] = float(divergence.detach().sum() / count)
        loss = terms.sum() / count
        return loss, metrics | {"loss": float(loss.detach())}


def sequence_kl(value: Tensor, ref: Tensor, kind: str) -> Tensor:
    """Estimates of KL(policy || reference) from one log-likelihood per response.

    Differences of whole responses may be large: k3 goes on as a straight line above a difference of 20. The gradient of
    plain k1 is zero on average; its value is kept here, with the gradient of k2 added, which is right on average.

    Args:
        value, ref: [B], estimates under policy and reference on the same draws.
        kind: ``k1``, ``k2`` or ``k3``.

    Returns:
        [B].

    Source:
        ML-GSAI/ESPO `compute_approx_kl`.
    """
    if kind == "k1":
        fixed = value.detach()
        return value - ref + (value - fixed) * (fixed - ref)
    if kind == "k3":
        bound = objectives.MAX_LOG_RATIO
        difference = ref - value
        excess = (difference - bound).clamp(min=0)
        return difference.clamp(max=bound).exp() + excess * torch.tensor(bound).exp() - difference - 1
    return objectives.kl(value, ref, kind)
