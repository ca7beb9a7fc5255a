"""UniGRPO: clipped policy gradient on masks whose ratio grows over the inner iterations (MMaDA, arXiv 2505.15809)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.options import TokenOptions, check_range
from dare_bench.dare.algorithms.policy import TokenPolicy
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.lazy import lazy_import
from dare_bench.dare.randomness import uniform

if TYPE_CHECKING:
    import torch
    from dare_bench.dare.algorithms import estimators, objectives
    from dare_bench.dare.diffusion import block, corruption
    from torch import Tensor
else:
    torch = lazy_import("torch")
    estimators = lazy_import("dare_bench.dare.algorithms.estimators")
    objectives = lazy_import("dare_bench.dare.algorithms.objectives")
    block = lazy_import("dare_bench.dare.diffusion.block")
    corruption = lazy_import("dare_bench.dare.diffusion.corruption")


@dataclass(frozen=True)
class UniGRPOConfig(TokenOptions):
    """Options of `unigrpo`, beside those of every clipped policy gradient.

    Attributes:
        timesteps: levels of the mask ratio (T); the ratio of an inner iteration is t / T.
    """

    inner_iterations: int = 4
    advantage: str = "std"
    beta: float = 0.04
    timesteps: int = 128
    aggregation: str = "seq-mean-token-mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, {"timesteps": (1, float("inf"))})


@register(
    "unigrpo",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=UniGRPOConfig,
    # Group size, inner iterations, clip and KL weight are not published: the defaults, which are those of d1's scale.
    presets={"paper": {"advantage": "std", "aggregation": "seq-mean-token-mean"}},
    train_presets={"paper": {"lr": 5e-5, "schedule": "cosine"}},
)
class UniGRPO(TokenPolicy):
    """UniGRPO: tokens scored under masks whose ratio runs from a random start to 1 over the inner iterations.

    A rollout batch draws a start t_1; inner iteration n masks the share t_n / T of every response, with fresh positions and
    t_n evenly spaced from t_1 to T. Only masked tokens are scored, at least one per response; the prompt is never masked.
    Counted tokens and those behind them are masked in equal shares. On block families each block is corrupted given the
    clean earlier ones, as these models are trained.

    The published stage trains all weights for 50000 steps on a multimodal base; its results do not compare. There is no
    public code of it, and DARE does not implement it.

    Source:
        arXiv 2505.15809.
    """

    name = "unigrpo"
    needs = Needs(rollout="policy", old=True, ref="frozen")
    Config = UniGRPOConfig

    def timestep(self, context: Context) -> int:
        """t_n of an inner iteration, in 0..T; one start per rollout batch."""
        start = float(uniform([replace(context, inner=0).seed("start")], 1))
        return schedule(start, self.config.timesteps, context.inner_iterations)[context.inner]

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """One row per response, masked at the share of this inner iteration."""
        t, counted = self.timestep(context), self.counted(batch)
        masked = self._masked(context.seeds("counted", batch), counted, t, at_least=1)
        rest = self._masked(context.seeds("rest", batch), batch.response & ~counted, t)
        noisy = corruption.apply_mask(batch.ids, masked | rest, batch.mask_token_id)
        return [block.rows_from(batch, noisy, masked, torch.ones(batch.ids.shape, dtype=torch.float64))]

    def _masked(self, seeds: list[int], allowed: Tensor, t: int, at_least: int = 0) -> Tensor:
        total = allowed.sum(1)
        # Integers, rounded half up: a share of exactly 1 masks everything.
        count = (2 * total * t + self.config.timesteps).div(2 * self.config.timesteps, rounding_mode="floor")
        return estimators.mask_of_count(seeds, torch.minimum(count.clamp(min=at_least), total), allowed)


def schedule(start: float, timesteps: int, iterations: int) -> list[int]:
    """Timesteps of the inner iterations, evenly spaced from a start to T.

    Args:
        start: r_1 in [0, 1]; the first timestep is floor(r_1 T).
        timesteps: T.
        iterations: mu; 1 = the first timestep alone.

    Returns:
        mu integers, never falling; with two or more the last is T.
    """
    first = int(start * timesteps)
    if iterations == 1:
        return [first]
    return [first + n * (timesteps - first) // (iterations - 1) for n in range(iterations)]


__all__ = ["UniGRPO", "UniGRPOConfig", "schedule"]
