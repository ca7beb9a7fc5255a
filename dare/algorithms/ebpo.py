"""EBPO: one ratio per response from the ELBOs of all its blocks, masked at once (arXiv 2602.08676)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.options import check_choice
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.algorithms.sequence import SequenceOptions, SequencePolicy
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    from dare_bench.dare.algorithms import estimators, segment_masks
    from torch import Tensor
else:
    segment_masks = lazy_import("dare_bench.dare.algorithms.segment_masks")
    estimators = lazy_import("dare_bench.dare.algorithms.estimators")


@dataclass(frozen=True)
class EBPOConfig(SequenceOptions):
    """Options of `ebpo`, beside those of every algorithm with one ratio per response.

    Attributes:
        block_grid: the blocks that are masked: the model's own (``global``), or counted from the end of the prompt
            (``response``; unbiased only where prompts fill whole blocks).
        ratio_norm: ``none`` (the published ratio) or ``tokens``: log-ratio and KL divided by the counted tokens, for more
            than one update per rollout, when the ratio of a long response leaves the clip range at once.
    """

    draws: int = 16
    advantage: str = "std"
    block_grid: str = "global"
    ratio_norm: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, {"block_grid": ("global", "response"), "ratio_norm": ("none", "tokens")})


_DARE = {"group_size": 8, "draws": 16, "advantage": "std", "eps_low": 0.2, "eps_high": 0.2, "counted": "eos",
         "block_grid": "global", "ratio_norm": "none"}  # fmt: skip


@register(
    "ebpo",
    families={"llada2_moe", "sdar", "sdar_moe"},
    config=EBPOConfig,
    presets={
        "paper": {"draws": 16, "block_grid": "global", "ratio_norm": "none"},
        "dare": {**_DARE, "temperature": 1.0},
        "dare-llada2": {**_DARE, "temperature": 0.6},
    },
    train_presets={
        name: {"lr": 5e-7, "betas": (0.9, 0.999), "weight_decay": 0.01, "grad_clip": 1.0, "batch_size": 16}
        for name in ("dare", "dare-llada2")
    },
)
class EBPO(SequencePolicy):
    """EBPO: clipped ratio of whole responses from the summed ELBOs of their blocks, all scored in one forward per draw.

    The paper states neither draws, weights of the time steps, clip range, group size nor rewards; ``dare`` is the reading
    of the re-implementation, with equal weights.

    Source:
        arXiv 2602.08676 (equations 4 and 5); yjyddq/DARE `dllm_core_algos.py`.
    """

    name = "ebpo"
    needs = Needs(rollout="policy", old=True, ref="frozen")
    Config = EBPOConfig

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """One row per response and draw: every block that counts has at least one masked token."""
        counted = self.counted(batch)
        masks = segment_masks.all_block_masks(context, batch, counted, self.config.draws, origin=self.config.block_grid)
        for draw, (masked, weight) in enumerate(masks):
            yield estimators.elbo_rows(batch, masked, weight, draw, counted)

    def norm(self, lengths: Tensor) -> Tensor:
        """1, or counted tokens."""
        return lengths if self.config.ratio_norm == "tokens" else super().norm(lengths)
