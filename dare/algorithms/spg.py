"""SPG: sandwiched policy gradient, a lower bound for good responses and an upper one for bad (arXiv 2510.09541)."""

from __future__ import annotations

import math
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
    from dare_bench.dare.algorithms import block_masks, surrogates
    from dare_bench.dare.diffusion import block, corruption
    from torch import Tensor
else:
    torch = lazy_import("torch")
    block_masks = lazy_import("dare_bench.dare.algorithms.block_masks")
    surrogates = lazy_import("dare_bench.dare.algorithms.surrogates")
    block = lazy_import("dare_bench.dare.diffusion.block")
    corruption = lazy_import("dare_bench.dare.diffusion.corruption")


@dataclass(frozen=True)
class SPGConfig(GroupOptions):
    """Options of `spg`, beside those of every group policy.

    Attributes:
        estimation: of responses with a negative advantage: ``elbo``, ``eubo`` (upper bound), ``mix`` of both, or ``zero``
            (only good responses train). Good ones always take the lower bound.
        draws: masks per response; ``eubo`` and ``mix`` need 2: with one, their gradient is that of ``elbo``.
        exponent: b of the upper bound; larger = looser.
        omega: share of the upper bound in ``mix``.
        masking: ``block_random``, ``block_all``, ``random`` or ``all``, see `block_masks.draw`.
        mask_block: tokens of a block of the mask.
        prompt_mask: probability with which a prompt token is masked, and one of the response ahead of the block.
        min_t, max_t: bounds of the share that ``block_random`` and ``random`` mask; at least one token.
    """

    group_size: int = 6
    inner_iterations: int = 4
    estimation: str = "mix"
    draws: int = 2
    exponent: float = 1.5
    omega: float = 0.5
    masking: str = "block_random"
    mask_block: int = 32
    prompt_mask: float = 0.15
    min_t: float = 0.0
    max_t: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        infinite = float("inf")
        unit = dict.fromkeys(("omega", "prompt_mask", "min_t", "max_t"), (0, 1))
        check_range(self, unit | {"draws": (1, infinite), "mask_block": (1, infinite), "exponent": (1, infinite)})
        check_choice(
            self,
            {"estimation": ("elbo", "eubo", "mix", "zero"), "masking": ("block_random", "block_all", "random", "all")},
        )
        if self.min_t > self.max_t:
            raise ValueError(f"min_t: {self.min_t!r} above max_t {self.max_t!r}; allowed: min_t <= max_t")
        if self.estimation in ("eubo", "mix") and self.draws < 2:
            raise ValueError(
                f"draws: {self.draws!r} with estimation {self.estimation!r}; allowed: 2 or more, or estimation 'elbo' "
                "(one draw gives the gradient of the lower bound)"
            )


_PUBLISHED = {"group_size": 6, "inner_iterations": 4, "draws": 2, "advantage": "mean", "temperature": 0.9}
_TRAINING = {"lr": 3e-6, "betas": (0.9, 0.99), "weight_decay": 0.1, "grad_clip": 0.2, "batch_size": 8}


@register(
    "spg",
    families={"dream", "llada", "llada_moe"},
    config=SPGConfig,
    presets={
        "paper": _PUBLISHED,
        "repo": _PUBLISHED,
        # DARE asks for the mixture but draws one mask, where the mixture's gradient is the lower bound's.
        "dare": {"group_size": 8, "inner_iterations": 1, "estimation": "elbo", "draws": 1, "advantage": "std",
                 "temperature": 0.6, "counted": "canvas"},
    },
    train_presets={
        "paper": _TRAINING,
        "repo": _TRAINING,
        "dare": {"lr": 5e-7, "betas": (0.9, 0.999), "weight_decay": 0.01, "grad_clip": 1.0, "batch_size": 16},
    },
)  # fmt: skip
class SPG(GroupPolicy):
    """SPG: REINFORCE on a likelihood bound, lower for good responses and upper (or a mixture) for bad ones; no ratio, no KL.

    The loss is -sum A n L / sum n over the batch, n = counted tokens of a response and L its bound per token. The upper
    bound holds up to a constant that no weight changes; with few draws its estimate may lie below the lower bound's.
    Masks imitate semi-autoregressive decoding under full attention: one block in part, all behind it whole. Block families
    have no such states: they read clean earlier blocks and never later ones, so the bound would be another (see `bgpo`).

    The published runs decode 256 tokens in blocks of 32, two per step (Sudoku at temperature 0.3), and train LoRA of rank
    128 (alpha 64). Exponents per task: mixture 1.5 (Sudoku 1.0); ``eubo`` 1.5 (Countdown 2.0, Sudoku 1.0).

    Source:
        arXiv 2510.09541; facebookresearch/SPG `spg_trainer.py`.
    """

    name = "spg"
    needs = Needs(rollout="policy", old=False)
    Config = SPGConfig

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """`draws` rows per response, each with a mask of its own."""
        counted, config = self.counted(batch), self.config
        weight = torch.ones(batch.ids.shape, dtype=torch.float64)
        order = block_masks.block_order(context.seeds("blocks", batch), batch, counted, config.mask_block, config.draws)
        for draw in range(config.draws):
            masked = block_masks.draw(
                batch,
                counted,
                context,
                draw,
                config.masking,
                order[:, draw],
                mask_block=config.mask_block,
                ahead=config.prompt_mask,
                shares=(config.min_t, config.max_t),
            ) | surrogates.masked_prompt(batch, context, config.prompt_mask, f"prompt {draw}")
            noisy = corruption.apply_mask(batch.ids, masked, batch.mask_token_id)
            yield block.rows_from(batch, noisy, masked & counted, weight, draw=draw)

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Minus advantage times bound, weighted by the counted tokens of the response."""
        assert context.batch is not None, "the counted tokens of the responses are read from it"
        lengths = self.counted(context.batch).sum(1).to(new.dtype)
        advantages = advantages.to(new.dtype)
        lower, upper = self.bounds(new, rows, lengths)
        negative = self.negative(lower, upper)
        value = torch.where(advantages > 0, lower, negative)
        loss = -(advantages * value * lengths).sum() / lengths.sum().clamp(min=1)
        share = 1 / max(len(lengths), 1)
        metrics = {"loss": loss, "elbo_per_token": lower.sum() * share, "eubo_per_token": upper.sum() * share}
        return loss, {name: float(number.detach()) for name, number in metrics.items()}

    def negative(self, lower: Tensor, upper: Tensor) -> Tensor:
        """What stands for the likelihood of a response with a negative advantage."""
        if self.config.estimation == "mix":
            return self.config.omega * upper + (1 - self.config.omega) * lower
        return {"elbo": lower, "eubo": upper, "zero": torch.zeros_like(lower)}[self.config.estimation]

    def bounds(self, new: Tensor, rows: Rows, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Estimates per token of the lower and the upper bound, each [B].

        Args:
            new: [N, S, 1].
            rows: of all draws.
            lengths: [B], counted tokens; 0 gives 0.

        Returns:
            Mean over draws of the mean over masked tokens; and 1 / b times the mean over tokens masked in any draw of the
            log of ``mean over draws exp(b logp) [masked] n / k``.
        """
        draws, b = self.config.draws, self.config.exponent
        slot, slots = rows.owner * draws + rows.draw, len(lengths) * draws
        shape = (len(lengths), draws, -1)
        logp = surrogates.by_place(new[..., 0], rows, slot, slots).view(shape)
        masked = surrogates.by_place(rows.mask.to(new.dtype), rows, slot, slots).view(shape) > 0
        count = masked.sum(2).to(new.dtype)
        lower = (logp.sum(2) / count.clamp(min=1)).mean(1)
        share = count.clamp(min=1) / lengths.clamp(min=1)[:, None]
        seen = masked.any(1)
        # A token that no draw masks has no term: a finite stand-in keeps its gradient zero instead of undefined.
        terms = torch.where(masked, b * logp - share.log()[..., None], -torch.inf)
        terms = torch.where(seen[:, None], terms, 0.0)
        logs = torch.where(seen, terms.logsumexp(1) - math.log(draws), 0.0)
        return lower, logs.sum(1) / seen.sum(1).clamp(min=1).to(new.dtype) / b
