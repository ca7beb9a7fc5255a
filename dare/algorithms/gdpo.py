"""GDPO: one ratio per response from an ELBO integrated by quadrature over the noise level (arXiv 2510.08554)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows
from dare_bench.dare.algorithms.options import check_choice, check_range
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.algorithms.sequence import SequenceOptions, SequencePolicy, sequence_kl
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    from dare_bench.dare.algorithms import estimators, levels
    from torch import Tensor
else:
    levels = lazy_import("dare_bench.dare.algorithms.levels")
    estimators = lazy_import("dare_bench.dare.algorithms.estimators")


@dataclass(frozen=True)
class GDPOConfig(SequenceOptions):
    """Options of `gdpo`, beside those of every algorithm with one ratio per response.

    Attributes:
        levels: noise levels of the quadrature.
        draws: masks per level.
        rule: ``gauss`` (exact for responses of up to 2 x levels tokens) or ``midpoint``.
        kl: of the length-normalised estimates.
    """

    group_size: int = 6
    inner_iterations: int = 8
    levels: int = 3
    draws: int = 1
    rule: str = "gauss"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, {"levels": (1, 32)})
        check_choice(self, {"rule": ("gauss", "midpoint")})


@register(
    "gdpo",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=GDPOConfig,
    presets={"paper": {"advantage": "mean", "levels": 3, "draws": 1, "rule": "gauss", "kl": "k3"}},
)
class GDPO(SequencePolicy):
    """GDPO: clipped ratio of whole responses, exp((E - E_old) / n), E by quadrature over fixed noise levels.

    Most of the variance of an ELBO estimate comes from the noise level; its integrand is smooth. Only the masks are drawn.
    Group size, inner iterations and the weight of the KL are choices of this project where the method does not fix them.

    Source:
        arXiv 2510.08554.
    """

    name = "gdpo"
    needs = Needs(rollout="policy", old=True, ref="frozen")
    Config = GDPOConfig

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """One row per response, level and draw: each counted token masked with the level's probability."""
        counted = self.counted(batch)
        nodes = levels.quadrature(self.config.levels, self.config.rule)[0].repeat_interleave(self.config.draws)
        masks = levels.level_masks(context, batch, counted, nodes)
        for draw, (masked, weight) in enumerate(masks):
            yield estimators.elbo_rows(batch, masked, weight, draw, counted)

    def draw_weights(self) -> Tensor:
        """Weights of the quadrature, shared by the draws of a level."""
        weights = levels.quadrature(self.config.levels, self.config.rule)[1]
        return weights.repeat_interleave(self.config.draws) / self.config.draws

    def norm(self, lengths: Tensor) -> Tensor:
        """Counted tokens."""
        return lengths

    def divergence(self, value: Tensor, ref: Tensor, norm: Tensor) -> Tensor:
        """KL of the length-normalised estimates, the scale on which the ratio is formed."""
        return sequence_kl(value / norm, ref / norm, self.config.kl)
