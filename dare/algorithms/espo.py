"""ESPO: one ratio per response from coupled ELBO estimates (arXiv 2512.03759)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.algorithms.sequence import SequenceOptions, SequencePolicy
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    from dare_bench.dare.algorithms import estimators
    from torch import Tensor
else:
    estimators = lazy_import("dare_bench.dare.algorithms.estimators")


@dataclass(frozen=True)
class ESPOConfig(SequenceOptions):
    """Options of `espo`, beside those of every algorithm with one ratio per response.

    Attributes:
        eps_low, eps_high: 0 is legal: only updates that move a ratio back to 1 pass (and the first one).
        coupled: every draw is a mask and its complement; else the mask alone.
        length_norm: log-ratios and the KL (of raw estimates) are divided by the number of counted tokens.
    """

    group_size: int = 6
    inner_iterations: int = 8
    advantage: str = "loo"
    counted: str = "canvas"
    beta: float = 1e-3
    kl: str = "k2"
    coupled: bool = True
    length_norm: bool = True


_REPO = {"group_size": 6, "inner_iterations": 8, "draws": 2, "advantage": "loo", "eps_low": 0.2, "beta": 1e-3, "kl": "k2",
         "temperature": 1.0, "counted": "canvas"}  # fmt: skip
_TRAIN = {"lr": 3e-6, "betas": (0.9, 0.99), "weight_decay": 0.01, "grad_clip": 0.2}


@register(
    "espo",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=ESPOConfig,
    presets={
        "paper": {**_REPO, "advantage": "mean"},
        "repo": _REPO,
        "repo-math": {**_REPO, "group_size": 16},
        "repo-code": {**_REPO, "group_size": 10, "beta": 1e-2},
        "repo-countdown": {**_REPO, "eps_low": 0.0, "beta": 3e-3},
        "repo-sudoku": {**_REPO, "beta": 1e-2},
        "dare": {**_REPO, "group_size": 16},
    },
    train_presets={
        "repo": _TRAIN,
        "repo-code": {**_TRAIN, "lr": 1e-6, "grad_clip": 0.8},
        "dare": {"lr": 5e-7, "betas": (0.9, 0.999), "weight_decay": 0.01, "grad_clip": 1.0},
    },
)
class ESPO(SequencePolicy):
    """ESPO: clipped ratio of whole responses from coupled ELBO estimates, KL on the raw estimate.

    Counts are stratified over the draws of a response, not over a micro-batch: a draw depends on its response alone. On
    block families a draw over the whole response is unbiased for the sum of the blocks' ELBOs, because a uniform order of
    all tokens is a uniform order of those of a block; there the doubled layout is read.

    Source:
        arXiv 2512.03759; ML-GSAI/ESPO `espo_trainer.py`.
    """

    name = "espo"
    needs = Needs(rollout="policy", old=True, ref="frozen")
    Config = ESPOConfig

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """Two rows per response and draw: a mask of k ~ U{0..n} tokens and its complement."""
        counted = self.counted(batch)
        masks = estimators.stratified_masks(context, batch, counted, self.config.draws, lowest=0)
        for draw, (masked, counts) in enumerate(masks):
            yield from estimators.coupled_rows(batch, masked, counts, draw, counted, coupled=self.config.coupled)

    def norm(self, lengths: Tensor) -> Tensor:
        """Counted tokens, or 1."""
        return lengths if self.config.length_norm else super().norm(lengths)
