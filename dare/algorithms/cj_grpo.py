"""CJ-GRPO: policy gradient on the consistent trajectory, every token scored in the state it was chosen in (2509.23924)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.options import ClipOptions, check_range
from dare_bench.dare.algorithms.policy import GroupPolicy, clipped_sum
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    from dare_bench.dare.algorithms import step_weights, trajectories
    from torch import Tensor
else:
    step_weights = lazy_import("dare_bench.dare.algorithms.step_weights")
    trajectories = lazy_import("dare_bench.dare.algorithms.trajectories")


@dataclass(frozen=True)
class CJGRPOConfig(ClipOptions):
    """Options of `cj_grpo`, beside those of every clipped policy gradient.

    Attributes:
        counted: ``canvas`` = tokens decoded behind the stop token count too (all published numbers; on block families they
            end with the block of the stop token); ``eos`` = the response through its stop token.
        merge: steps of a decoding block that are replayed as one; 1 = every step, 0 = one row per block.
    """

    counted: str = "canvas"
    merge: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, {"merge": (0, float("inf"))})


@register(
    "cj_grpo",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=CJGRPOConfig,
    presets={
        "paper": {"advantage": "mean", "counted": "canvas"},
        "repo": {"group_size": 6, "inner_iterations": 12, "eps_low": 0.5, "beta": 0.04, "temperature": 1.0},
        "dare": {"group_size": 8, "inner_iterations": 1, "eps_low": 0.2, "dual_clip": 3.0, "advantage": "std",
                 "temperature": 0.6},
    },
    train_presets={
        "repo": {"lr": 3e-6, "betas": (0.9, 0.99), "weight_decay": 0.1, "grad_clip": 0.2, "batch_size": 6},
        "dare": {"lr": 5e-7, "betas": (0.9, 0.999), "weight_decay": 0.01, "grad_clip": 1.0, "batch_size": 16},
    },
)  # fmt: skip
class CJGRPO(GroupPolicy):
    """CJ-GRPO: clipped policy gradient on the denoising trajectory, each token scored in the state it was chosen in.

    Full attention: one row per step, mean over the tokens of a step in all responses, then over steps. Block families:
    one row per local step, at which all blocks of a response stand at once; mean over the tokens of a (block, local step),
    then over those of a response, then over responses. Steps that committed no counted token are no steps. Tokens that the
    network never chose (fill, masks left over) are not scored.

    The paper and its code decode 128 tokens in blocks of 64 with 32 steps, or with few, growing steps:
    decoders ``ass``, ``eoser``, ``eoser_ass``. DARE: 256 tokens (Dream on code 512) in blocks of 32, half as
    many steps; block families dynamically by confidence. Decode with ``early_stop: false`` to score the whole canvas.

    Source:
        arXiv 2509.23924; yjyddq/EOSER-ASS-RL `cj_grpo_trainer_semiar.py`; yjyddq/DARE `block_diffusion_utils.py`.
    """

    name = "cj_grpo"
    needs = Needs(rollout="policy", trace="step_map", old=True, ref="frozen")
    separable = True
    Config = CJGRPOConfig

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """One row per response and step (block families: local step); no random draws."""
        recorded, blocks = trajectories.step_map(batch, self.name), trajectories.decoding_blocks(batch)
        if batch.block_length:
            steps = trajectories.step_ranks(recorded, blocks, self.config.merge)
            targets = self.counted(batch) & (steps >= 0)
            weight = step_weights.transition_weights(steps, blocks, targets)
        else:
            steps = trajectories.merged_steps(recorded, blocks, self.config.merge)
            targets = self.counted(batch) & (steps >= 0)
            weight = step_weights.balanced_weights(steps, targets)
        return trajectories.step_rows(batch, steps, targets, weight)

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Clipped surrogate per token + beta x KL, weighted; the weights hold the means over tokens and steps."""
        return clipped_sum(new, old, ref, rows, advantages, self.config)
