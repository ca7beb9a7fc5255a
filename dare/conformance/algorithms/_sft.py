"""What the supervised files share: batches from recorded ids, and the loss of recorded masks and logits."""

from __future__ import annotations

from typing import Any

import torch
from dare_bench.dare.algorithms.base import Batch, Context, Rows
from dare_bench.dare.algorithms.objectives import token_logps
from dare_bench.dare.algorithms.sft import SFT, SFTConfig
from dare_bench.dare.conformance.fixture import Fixture
from torch import Tensor

CONTEXT = Context(run_seed=0)


class Recorded(SFT):
    """Supervised fine-tuning with recorded masks in place of drawn ones.

    Args:
        config: options.
        masked: bool [B, S].
        probability: [B] or [B, S], noise levels.
    """

    def __init__(self, config: SFTConfig, masked: Tensor, probability: Tensor) -> None:
        super().__init__(config)
        level = probability if probability.dim() == 2 else probability[:, None]
        self.recorded = masked.bool(), level.expand(masked.shape)

    def _corrupt(self, batch: Batch, context: Context) -> tuple[Tensor, Tensor]:
        return self.recorded[0].clone(), self.recorded[1]


def batch_of(data: Fixture, counted: Tensor | None = None, block_length: int = 0) -> Batch:
    """The recorded ids as a batch; everything behind the prompt counts unless `counted` says otherwise.

    Args:
        data: with ``input_ids``, ``prompt_lengths`` and ``mask_id``.
        counted: bool [B, S].
        block_length: tokens per block; 0 = full attention.
    """
    ids, prompts = data.tensor("input_ids"), data.tensor("prompt_lengths")
    count, width = ids.shape
    answers = torch.arange(width) >= prompts[:, None]
    return Batch(
        ids=ids,
        prompt_lengths=prompts,
        lengths=torch.full((count,), width),
        counted=answers if counted is None else counted.bool(),
        sample_ids=[str(row) for row in range(count)],
        groups=torch.arange(count),
        mask_token_id=data["mask_id"],
        eos_token_id=data["mask_id"] - 1,
        block_length=block_length,
    )


def run(
    config: SFTConfig, batch: Batch, masked: Tensor, probability: Tensor, logits: Tensor
) -> tuple[Tensor, Rows, Tensor]:
    """Loss of recorded masks and logits.

    Args:
        config: options.
        batch: of `batch_of`.
        masked: [B, S].
        probability: [B] or [B, S].
        logits: aligned [B, S, V], or [draws, B, S, V].

    Returns:
        The loss, the rows, and the loss's gradient with respect to the logits.
    """
    logits = logits.detach().requires_grad_()
    algorithm = Recorded(config, masked, probability)
    (rows,) = algorithm.rows(batch, CONTEXT)
    stacked = logits if logits.dim() == 4 else logits[None]
    places = rows.position_ids.clamp(max=logits.shape[-2] - 1)
    own = stacked[rows.draw[:, None], rows.owner[:, None], places]
    new = torch.where(rows.mask, token_logps(own, rows.targets[..., 0]), 0.0)[..., None]
    loss, _ = algorithm.loss(new, None, None, rows, algorithm.advantages(batch), CONTEXT)
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.detach(), rows, gradient


def config_of(preset: str | None = None, **options: Any) -> SFTConfig:
    """Options of a preset with changes."""
    from dare_bench.dare.algorithms import registry

    return SFTConfig(**{**(registry.get("sft").presets[preset] if preset else {}), **options})
