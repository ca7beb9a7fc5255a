"""JustGRPO: left-to-right rollouts, scored by their exact likelihood (arXiv 2601.15165)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.options import ClipOptions, check_choice, check_range
from dare_bench.dare.algorithms.policy import GroupPolicy, clipped_sum
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from dare_bench.dare.algorithms import trajectories
    from torch import Tensor
else:
    torch = lazy_import("torch")
    trajectories = lazy_import("dare_bench.dare.algorithms.trajectories")

#: Added to the number of responses that the mean is over.
_EPSILON = 1e-5


@dataclass(frozen=True)
class JustGRPOConfig(ClipOptions):
    """Options of `justgrpo`, beside those of every clipped policy gradient.

    Attributes:
        advantage: as in every group policy; the default is that of the published trainer.
        counted: ``canvas`` = all that was decoded counts; ``eos`` = the response through its stop token.
        delta: added to the standard deviation of a group.
        reduction: ``responses`` = sum over tokens / canvas length, mean over the responses with a non-zero advantage;
            ``token-mean`` = mean over the tokens of all responses.
        mean_over: prompts over whose responses a mean is formed; the means of a batch add up. 0 = one mean. The published
            trainer forms it over one prompt per device.
        position_chunk: positions of a response that are made into rows at a time. Changes memory, never the result.
    """

    group_size: int = 16
    advantage: str = "std"
    counted: str = "canvas"
    delta: float = 1e-4
    reduction: str = "responses"
    mean_over: int = 0
    position_chunk: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        infinite = float("inf")
        check_range(self, {"delta": (0, infinite), "mean_over": (0, infinite), "position_chunk": (1, infinite)})
        check_choice(self, {"reduction": ("responses", "token-mean")})
        if not self.temperature > 0:
            raise ValueError(f"temperature: {self.temperature!r}; allowed: above 0 (scores are divided by it)")


@register(
    "justgrpo",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=JustGRPOConfig,
    presets={
        "paper": {"group_size": 16, "temperature": 1.0},
        "repo": {"group_size": 16, "temperature": 1.0, "mean_over": 8},
        "dare": {"group_size": 8, "temperature": 0.6, "delta": 1e-6, "dual_clip": 3.0, "reduction": "token-mean",
                 "position_chunk": 1},
    },
    train_presets={
        "paper": {"lr": 5e-6, "betas": (0.9, 0.999), "weight_decay": 0.0, "grad_clip": 1.0, "batch_size": 64, "steps": 125},
        "repo": {"lr": 5e-6, "betas": (0.9, 0.999), "weight_decay": 0.0, "grad_clip": 1.0, "batch_size": 64, "steps": 125},
        "dare": {"lr": 5e-7, "weight_decay": 0.01, "grad_clip": 1.0, "batch_size": 16},
    },
)  # fmt: skip
class JustGRPO(GroupPolicy):
    """JustGRPO: left-to-right rollouts and the exact likelihood of that sampler, one row per response token.

    The score of token t reads the prompt, the tokens before t and masks from t on; logits are divided by the rollout's
    temperature. Block families decode and mask within a block only, and all blocks of a response share a row: a block's
    length of rows per response, not the response's.

    Rollouts go strictly left to right whatever the decoder says; its `gen_length` is the paper's 256 (DARE 512, planning
    tasks 256) with ``early_stop: false``, which decodes and counts the whole canvas. Evaluation is ordinary parallel
    decoding in blocks of 32.

    Source:
        arXiv 2601.15165; LeapLabTHU/JustGRPO `grpo.py`; yjyddq/DARE `llada_dp_actor_justgrpo.py`.
    """

    name = "justgrpo"
    needs = Needs(rollout="ar", trace="step_map", old=True, ref="frozen")
    separable = True
    Config = JustGRPOConfig

    def __init__(self, config: JustGRPOConfig | None = None) -> None:
        super().__init__(config)
        self.delta = self.config.delta

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """Rows of the responses that move the policy, `position_chunk` positions of them at a time."""
        chosen = trajectories.step_map(batch, self.name) >= 0
        steps = trajectories.left_to_right(batch)
        counted = self.counted(batch) & chosen
        moves = self.advantages(batch) != 0
        if self.config.reduction == "token-mean":
            weight = counted.double() / counted.sum().clamp(min=1)
            # Without a KL a zero advantage has no loss: its rows need not be computed.
            targets = counted if self.config.beta else counted & moves[:, None]
        else:
            share = 1.0 / (self._movers(batch, moves) + _EPSILON)
            weight = (share[:, None] / trajectories.longest_response(batch)).expand(counted.shape)
            targets = counted & moves[:, None]
        size = self.config.position_chunk * max(int(targets.any(1).sum()), 1)
        return trajectories.step_rows(
            batch, steps, targets, weight, rows_per_part=size, temperature=self.config.temperature
        )

    def _movers(self, batch: Batch, moves: Tensor) -> Tensor:
        """Responses with a non-zero advantage among those that a response's mean is over, float64 [B]."""
        _, group = batch.groups.unique(return_inverse=True)
        part = group.div(self.config.mean_over, rounding_mode="floor") if self.config.mean_over else group * 0
        return torch.zeros(int(part.max()) + 1, dtype=torch.float64).index_add(0, part, moves.double())[part]

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Clipped surrogate per token (ratio 1 in the first pass) + beta x KL, weighted by the rows."""
        return clipped_sum(new, old, ref, rows, advantages, self.config)
