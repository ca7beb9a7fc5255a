"""Options of supervised fine-tuning, with their checks and presets. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dare_bench.dare.algorithms.options import check_choice, check_range


@dataclass(frozen=True)
class SFTConfig:
    """Options of `sft`.

    Attributes:
        loss_norm: ``sequence``, ``token``, ``batch`` or ``masked_token``; null = ``sequence`` under full attention
            (LLaDA guideline), ``token`` under block diffusion (SDAR).
        weight: of a masked token, t being the noise level: ``inv_t`` (1/t, a likelihood bound; Dream's ``original``),
            ``linear`` (1 - t), ``cart`` (more where visible tokens are near) or ``none`` (1; Dream's ``uniform``).
        cart_p: of ``cart``, parameter of the geometric distribution over distances.
        focal_alpha: scale of the focal factor alpha (1 - p)^gamma on each token's loss; null = no such factor.
        focal_gamma: its exponent.
        response_cut: share of examples whose response is cut at a random length, so that its end is not always seen.
        noise_scope: one noise level per ``sequence`` or per ``block`` (block families).
        noise_low, noise_high: range of the noise level.
        eps: floor of the masking probability; 0 = none (Dream's trainer).
        stratified: spread block noise levels evenly over the batch (BD3-LM).
        even_noise: noise levels on an even grid over the batch instead of drawn, for losses that are compared.
        complementary: train on both halves of every mask (LLaDA2.0).
        treat_eos_as_one: trailing end tokens are visible or masked together.
        block_schedule: (until step, block length) pairs; behind the last the model's own length (block families). Only
            mask and noise scope change with it.
        semi_ar_share: share of rows corrupted as the semi-autoregressive decoder meets them (full attention): clean
            blocks, one active block at a random noise level, everything behind it masked.
        semi_ar_tail_weight: weight of the masked tail in such rows.
        semi_ar_block: length of the active block.
        semi_ar_from: share of the run after which such rows are made; before it every row is masked at random.
    """

    loss_norm: str | None = None
    weight: str = "inv_t"
    cart_p: float = 0.1
    focal_alpha: float | None = None
    focal_gamma: float = 2.0
    response_cut: float = 0.0
    noise_scope: str = "sequence"
    noise_low: float = 0.0
    noise_high: float = 1.0
    eps: float = 1e-3
    stratified: bool = False
    even_noise: bool = False
    complementary: bool = False
    treat_eos_as_one: bool = False
    block_schedule: Sequence[Sequence[int]] = ()
    semi_ar_share: float = 0.0
    semi_ar_tail_weight: float = 0.2
    semi_ar_block: int = 8
    semi_ar_from: float = 0.0

    def __post_init__(self) -> None:
        check_choice(
            self,
            {
                "loss_norm": (None, "sequence", "token", "batch", "masked_token"),
                "weight": ("inv_t", "linear", "cart", "none"),
                "noise_scope": ("sequence", "block"),
            },
        )
        check_range(
            self,
            {"cart_p": (0, 1), "focal_alpha": (0, float("inf")), "focal_gamma": (1, float("inf")), "eps": (0, 1),
             "response_cut": (0, 1), "semi_ar_share": (0, 1), "semi_ar_from": (0, 1)},
        )  # fmt: skip
        if not 0 <= self.noise_low <= self.noise_high <= 1:
            raise ValueError(
                f"noise_low, noise_high: {self.noise_low}, {self.noise_high}; allowed: 0 <= low <= high <= 1"
            )
        _check_schedule(self.block_schedule)

    def block_length(self, step: int, own: int) -> int:
        """Tokens per block at a step.

        Args:
            step: optimiser step, from 0.
            own: block length of the model; 0 under full attention.

        Raises:
            ValueError: a schedule for a model without blocks.
        """
        if self.block_schedule and not own:
            raise ValueError("block_schedule: this model has full attention and no blocks; allowed: block families")
        return next((size for until, size in self.block_schedule if step < until), own)


def _check_schedule(schedule: Sequence[Sequence[int]]) -> None:
    shown = f"block_schedule: {[list(pair) for pair in schedule]!r}"
    if any(len(pair) != 2 or min(pair) < 1 for pair in schedule):
        raise ValueError(f"{shown}; allowed: pairs (until step, block length) of numbers from 1 on")
    for (before, one), (until, other) in pairwise(schedule):
        if until <= before:
            raise ValueError(f"{shown}; allowed: rising steps, but {until} follows {before}")
        if one % other and other % one:
            raise ValueError(
                f"{shown}; allowed: each block length divides the next or is divided by it, not {one}, {other}"
            )


def unsupported_schedule(train: Any, options: SFTConfig) -> Mapping[str, str]:
    """Block lengths that do not divide the longest sequence: field -> what is allowed.

    Args:
        train: optimisation settings.
        options: of `sft`.
    """
    wrong = [size for _, size in options.block_schedule if train.max_length % size]
    if not wrong:
        return {}
    return {"block_schedule": f"block lengths that divide max_length {train.max_length}; {wrong[0]} does not"}


LLADA2 = {"noise_low": 0.3, "noise_high": 0.8, "weight": "none", "loss_norm": "masked_token", "eps": 0.0}

#: Named sets of options.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "repo": {},
    "dare": {"loss_norm": "masked_token"},
    "sdar": {"noise_scope": "sequence", "weight": "inv_t", "loss_norm": "token"},
    "llada2": LLADA2,
    "bd3lm": {"noise_scope": "block", "weight": "inv_t", "stratified": True, "loss_norm": "token"},
    "dream": {"weight": "cart", "cart_p": 0.1, "loss_norm": "masked_token"},
}
