"""d1 / diffu-GRPO: policy gradient on a one-forward likelihood (arXiv 2504.12216)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.options import TokenOptions, check_range
from dare_bench.dare.algorithms.policy import TokenPolicy
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    from dare_bench.dare.algorithms import objectives, surrogates
else:
    objectives = lazy_import("dare_bench.dare.algorithms.objectives")
    surrogates = lazy_import("dare_bench.dare.algorithms.surrogates")


@dataclass(frozen=True)
class D1Config(TokenOptions):
    """Options of `d1`, beside those of every clipped policy gradient.

    Attributes:
        prompt_mask: probability with which a prompt token is masked in the surrogate.
    """

    prompt_mask: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, {"prompt_mask": (0, 1)})


@register(
    "d1",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=D1Config,
    presets={
        # The paper gives the objective; its other numbers are those of the published scripts.
        "paper": {"group_size": 6, "inner_iterations": 12, "eps_low": 0.5, "beta": 0.04, "temperature": 0.9,
                  "aggregation": "seq-mean-token-mean"},
        "repo": {"group_size": 6, "inner_iterations": 12, "eps_low": 0.5, "beta": 0.04, "temperature": 0.9},
        "dare": {"group_size": 8, "inner_iterations": 1, "eps_low": 0.2, "dual_clip": 3.0, "advantage": "std",
                 "temperature": 0.6, "counted": "canvas"},
    },
    train_presets={
        "paper": {"lr": 3e-6, "betas": (0.9, 0.99), "weight_decay": 0.1, "grad_clip": 0.2, "batch_size": 6},
        "repo": {"lr": 3e-6, "betas": (0.9, 0.99), "weight_decay": 0.1, "grad_clip": 0.2, "batch_size": 6},
        "dare": {"lr": 5e-7, "betas": (0.9, 0.999), "weight_decay": 0.01, "grad_clip": 1.0, "batch_size": 16},
    },
)  # fmt: skip
class D1(TokenPolicy):
    """Diffu-GRPO: token-level clipped policy gradient on the fully masked completion (block families: fully masked blocks).

    Under full attention the whole completion is masked. On block families every block is fully masked given the clean
    earlier blocks, in the doubled layout: a block model never meets a completion whose later blocks are masked beside
    earlier ones, and this is its one-forward likelihood.

    The published runs decode 256 tokens in blocks of 32, two per step, and train LoRA of rank 128 (alpha 64) on prompts of
    at most 200 tokens; `inner_iterations` is 12 on GSM8K and MATH, 8 on Countdown and Sudoku. DARE trains all weights, one
    inner iteration: the ratio stays 1 and clipping never acts; Dream is sampled at temperature 0.2 there.

    Source:
        arXiv 2504.12216; dllm-reasoning/d1 `diffu_grpo_trainer.py`.
    """

    name = "d1"
    needs = Needs(rollout="policy", old=True, ref="frozen")
    Config = D1Config

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """One row per response: completion fully masked, each prompt token masked with probability `prompt_mask`."""
        mask = self.config.prompt_mask
        return [surrogates.masked_completion(batch, context, self.counted(batch), prompt_mask=mask)]
