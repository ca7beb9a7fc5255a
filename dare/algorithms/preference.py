"""Preference optimisation on ELBO estimates: what `vrpo` and `dpo` share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.options import check_choice, check_range
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from dare_bench.dare.algorithms import estimators
    from torch import Tensor
else:
    torch = lazy_import("torch")
    estimators = lazy_import("dare_bench.dare.algorithms.estimators")

_INFINITE = float("inf")


@dataclass(frozen=True)
class PreferenceOptions:
    """Options of preference optimisation on ELBO estimates.

    Attributes:
        beta: factor of the difference of the summed estimates.
        draws: masks per response (n).
        masks_per_count: of them, how many share one mask count (n_y); draws / masks_per_count counts are stratified (n_t).
        shared_noise: policy and reference are scored on the same masks; else each on its own.
        sft_weight: factor of the chosen response's negative ELBO per token.
        elbo_norm: ``sum`` over tokens, or divided by ``padded_length``.
        padded_length: divisor of ``elbo_norm: padded_length``.
    """

    beta: float = 0.2
    draws: int = 8
    masks_per_count: int = 1
    shared_noise: bool = True
    sft_weight: float = 0.0
    elbo_norm: str = "sum"
    padded_length: int = 512

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ValueError(f"beta: {self.beta!r}; allowed: a number > 0")
        check_range(self, {"draws": (1, _INFINITE), "masks_per_count": (1, self.draws), "sft_weight": (0, _INFINITE),
                           "padded_length": (1, _INFINITE)})  # fmt: skip
        check_choice(self, {"elbo_norm": ("sum", "padded_length")})
        if self.draws % self.masks_per_count:
            raise ValueError(f"masks_per_count: {self.masks_per_count!r}; allowed: a divisor of draws ({self.draws})")


class ELBOPreference:
    """Base: logistic loss of the difference of ELBO estimates, policy minus reference, chosen minus rejected."""

    name: ClassVar[str]
    needs = Needs(rollout="none", old=False, ref="frozen", pairs=True)
    separable = False
    Config: ClassVar[type]

    def __init__(self, config: Any = None) -> None:
        self.config = self.Config() if config is None else config

    def advantages(self, batch: Batch) -> Tensor:
        """Unused: zeros [B]."""
        return torch.zeros(len(batch.ids), dtype=torch.float64)

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """One row per response and draw; with noise of their own, the reference's draws follow those of the policy."""
        counted, config = batch.counted, self.config
        strata = config.draws // config.masks_per_count
        draw = 0
        for stream in ("elbo",) if config.shared_noise else ("elbo", "elbo of the reference"):
            masks = estimators.stratified_masks(context, batch, counted, config.draws, strata=strata, stream=stream)
            for masked, counts in masks:
                weight = estimators.count_weights(counts, counted.sum(1))
                yield estimators.elbo_rows(batch, masked, weight, draw, counted)
                draw += 1

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """softplus(-score), averaged over pairs, + sft_weight x negative ELBO per token of the chosen."""
        batch, config = context.batch, self.config
        assert batch is not None and batch.chosen is not None and ref is not None, (
            f"{self.name} needs pairs, a reference"
        )
        terms, other = self.terms(new, ref, rows, len(batch.ids))
        value = terms.mean(1)
        margins, chosen = self.scores(value - other.mean(1), batch)
        loss = torch.nn.functional.softplus(-margins).mean()
        if config.sft_weight:
            tokens = batch.counted.sum(1).clamp(min=1)
            loss = loss - config.sft_weight * (value / tokens)[chosen].mean()
        fixed = value.detach()
        metrics = {
            "margin": float(margins.detach().mean()),
            "accuracy": float((margins > 0).double().mean()),
            "elbo_chosen": float(fixed[chosen].mean()),
            "elbo_rejected": float(fixed[~chosen].mean()),
            "elbo_variance": float(terms.detach().var(1).mean()) if config.draws > 1 else 0.0,
            "loss": float(loss.detach()),
        }
        return loss, metrics

    def terms(self, new: Tensor, ref: Tensor, rows: Rows, responses: int) -> tuple[Tensor, Tensor]:
        """Estimates of every draw, float64 [B, n], under the policy and under the reference."""
        draws = self.config.draws
        total = draws if self.config.shared_noise else 2 * draws
        policy, reference = (estimators.sum_by_draw(logp.double(), rows, responses, total) for logp in (new, ref))
        return policy[:, :draws], reference[:, total - draws :]

    def scores(self, gains: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Preference score of each pair [B / 2] from gains over the reference [B]; and which responses are chosen."""
        assert batch.chosen is not None
        chosen = batch.chosen.to(gains.device)
        pairs, index = batch.groups.to(gains.device).unique(return_inverse=True)
        signed = torch.where(chosen, gains, -gains)
        if self.config.elbo_norm == "padded_length":
            signed = signed / self.config.padded_length
        return self.config.beta * gains.new_zeros(len(pairs)).index_add(0, index, signed), chosen
