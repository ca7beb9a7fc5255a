"""wd1: weighted likelihood without a ratio (arXiv 2507.08838)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.options import GroupOptions, check_choice, check_range
from dare_bench.dare.algorithms.policy import GroupPolicy
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from dare_bench.dare.algorithms import surrogates
    from torch import Tensor
else:
    torch = lazy_import("torch")
    surrogates = lazy_import("dare_bench.dare.algorithms.surrogates")


@dataclass(frozen=True)
class WD1Config(GroupOptions):
    """Options of `wd1`, beside those of every group policy.

    Attributes:
        psi: factor of the advantages in the softmax; rewards within [0, 1] give nearly flat weights at 1.
        parts: ``both`` = likelihood weighted by w+ - w-; ``positive`` = by w+ alone (equal rewards then still train: it is
            supervised learning on samples); ``negative`` = by -w- alone.
        prompt_mask: probability with which a prompt token is masked in the likelihood.
    """

    group_size: int = 6
    psi: float = 1.0
    parts: str = "both"
    prompt_mask: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, {"psi": (0, float("inf")), "prompt_mask": (0, 1)})
        check_choice(self, {"parts": ("both", "positive", "negative")})


_PUBLISHED = {"group_size": 6, "inner_iterations": 12, "advantage": "mean", "temperature": 0.9}
_TRAINING = {"lr": 3e-6, "betas": (0.9, 0.99), "weight_decay": 0.1, "grad_clip": 0.2, "batch_size": 8}


@register(
    "wd1",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=WD1Config,
    presets={"paper": _PUBLISHED, "repo": _PUBLISHED},
    train_presets={"paper": _TRAINING, "repo": _TRAINING},
)
class WD1(GroupPolicy):
    """wd1: likelihood of good responses up, of bad ones down, by softmax weights within the group; no ratio, no reference.

    The weights are w+ = softmax(psi A) and w- = softmax(-psi A) over the responses of a prompt (the published code: over a
    device's batch, which holds one group). A group's loss is the sum of (w- - w+) times the log-likelihood of one forward
    with a fully masked completion, not divided by its length; prompts are averaged. Nothing bounds a step: keep lr low. On
    block families the completion is masked block by block given the clean earlier ones, as in `d1`.

    The published runs decode 256 tokens in blocks of 32, two per step, and train LoRA of rank 128 (alpha 64). DARE does not
    implement it.

    Source:
        arXiv 2507.08838; xiaohangt/wd1 `rev_grpo_trainer.py`, `rev_grpo_trainer_psr.py`.
    """

    name = "wd1"
    needs = Needs(rollout="policy", old=False)
    Config = WD1Config

    def advantages(self, batch: Batch) -> Tensor:
        """Coefficient of each response's likelihood, float [B]: w+ - w- (or one of them), divided by the prompts."""
        positive, negative = self.weights(super().advantages(batch), batch.groups)
        value = {"both": positive - negative, "positive": positive, "negative": -negative}[self.config.parts]
        return value / len(batch.groups.unique())

    def weights(self, advantages: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        """w+ and w-, each of sum 1 within a group.

        Args:
            advantages: float [B].
            groups: int64 [B].
        """
        return tuple(_softmax(sign * self.config.psi * advantages, groups) for sign in (1.0, -1.0))

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """One row per response: completion fully masked, each prompt token masked with probability `prompt_mask`."""
        mask = self.config.prompt_mask
        return [surrogates.masked_completion(batch, context, self.counted(batch), prompt_mask=mask)]

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Minus the weighted log-likelihoods of the responses."""
        likelihood = torch.where(rows.mask, new[..., 0], 0.0).sum(1)
        loss = -(advantages[rows.owner].to(new.dtype) * likelihood).sum()
        tokens = rows.mask.sum().clamp(min=1)
        return loss, {"loss": float(loss.detach()), "logp_mean": float(likelihood.detach().sum() / tokens)}


def _softmax(values: Tensor, groups: Tensor) -> Tensor:
    """Softmax within groups, finite for any advantages; equal values of a group get exactly equal weights."""
    _, index = groups.unique(return_inverse=True)
    size = int(index.max()) + 1
    highest = values.new_full((size,), -torch.inf).scatter_reduce(0, index, values, "amax")
    raised = (values - highest[index]).exp()
    return raised / values.new_zeros(size).index_add(0, index, raised)[index]
