"""Supervised fine-tuning of an autoregressive model, by TRL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dare_bench.dare.algorithms.base import Needs
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.training.autoregressive_settings import unsupported

if TYPE_CHECKING:
    from dare_bench.dare.training.autoregressive_run import Job


@dataclass(frozen=True)
class SFTAutoregressiveConfig:
    """Options of `sft` for autoregressive models; defaults as in TRL.

    Attributes:
        loss_type: ``nll``, or ``dft`` (dynamic fine-tuning: each token weighted by its own probability).
    """

    loss_type: str = "nll"

    def __post_init__(self) -> None:
        if self.loss_type not in ("nll", "dft"):
            raise ValueError(f"loss_type: {self.loss_type!r}; allowed: nll, dft")


@register(
    "sft",
    families={"autoregressive"},
    config=SFTAutoregressiveConfig,
    presets={"paper": {}, "dft": {"loss_type": "dft"}},
    check=lambda train, settings: unsupported(train),
)
class SFTAutoregressive:
    """Supervised fine-tuning on prompt/completion pairs: next-token likelihood of the completion, by TRL.

    The loss is the mean over the completion tokens of a step (reply end included); prompt tokens are read, not scored.

    Source:
        TRL `SFTTrainer`; dft: arXiv 2508.05629.
    """

    name = "sft"
    needs = Needs(rollout="none", old=False)
    rows_per_example = 1
    inner_iterations = 1

    def __init__(self, config: SFTAutoregressiveConfig | None = None) -> None:
        self.config = config or SFTAutoregressiveConfig()

    def build(self, job: Job) -> Any:
        """The trainer of a run."""
        from dare_bench.dare.training.autoregressive_run import Plumbing
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        class Trainer(Plumbing, SFTTrainer):
            """SFTTrainer under this project's protocol."""

        rows = [
            {"input_ids": [*row.prompt, *row.response], "labels": [*[-100] * len(row.prompt), *row.response]}
            for row in job.encoded
        ]
        arguments = job.made(SFTConfig, loss_type=self.config.loss_type, max_length=None, packing=False)
        return Trainer(job, args=arguments, train_dataset=Dataset.from_list(rows))
