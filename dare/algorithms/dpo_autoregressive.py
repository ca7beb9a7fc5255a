"""Direct preference optimisation of an autoregressive model, by TRL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dare_bench.dare.algorithms.base import Needs
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.training.autoregressive_settings import unsupported

if TYPE_CHECKING:
    from dare_bench.dare.training.autoregressive_run import Job

_LOSSES = ("sigmoid", "sigmoid_norm", "hinge", "ipo", "robust", "apo_zero", "apo_down")


@dataclass(frozen=True)
class DPOAutoregressiveConfig:
    """Options of `dpo`; defaults as in TRL.

    Attributes:
        beta: strength of the pull to the reference.
        loss_type: ``sigmoid`` (DPO), ``sigmoid_norm``, ``hinge``, ``ipo``, ``robust``, ``apo_zero`` or ``apo_down``.
        label_smoothing: probability that a pair is labelled the wrong way round.
    """

    beta: float = 0.1
    loss_type: str = "sigmoid"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.loss_type not in _LOSSES:
            raise ValueError(f"loss_type: {self.loss_type!r}; allowed: {', '.join(_LOSSES)}")
        if not self.beta > 0:
            raise ValueError(f"beta: {self.beta!r}; allowed: a number > 0")
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(f"label_smoothing: {self.label_smoothing!r}; allowed: 0 to 0.5, 0.5 left out")


@register(
    "dpo",
    families={"autoregressive"},
    config=DPOAutoregressiveConfig,
    presets={"paper": {}, "ipo": {"loss_type": "ipo"}},
    train_presets={"paper": {"lr": 1e-6, "batch_size": 64, "warmup_steps": 150}},
    check=lambda train, settings: unsupported(train),
)
class DPOAutoregressive:
    """Direct preference optimisation on chosen/rejected pairs of one prompt, by TRL.

    The reference is the starting model: a frozen copy under full fine-tuning, the model without its adapters under LoRA.
    `batch_size` and `micro_batch_size` count pairs. Dropout is off.

    Source:
        arXiv 2305.18290; TRL `DPOTrainer`.
    """

    name = "dpo"
    needs = Needs(rollout="none", old=False, ref="frozen", pairs=True)
    rows_per_example = 1
    inner_iterations = 1

    def __init__(self, config: DPOAutoregressiveConfig | None = None) -> None:
        self.config = config or DPOAutoregressiveConfig()

    def build(self, job: Job) -> Any:
        """The trainer of a run.

        Raises:
            ValueError: an example has no pair.
        """
        from dare_bench.dare.training.autoregressive_run import Plumbing, fed
        from dare_bench.dare.training.data import encode
        from datasets import Dataset
        from trl import DPOConfig, DPOTrainer

        class Trainer(Plumbing, DPOTrainer):
            """DPOTrainer under this project's protocol; the reference reads what the policy reads."""

            def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
                job.count_scored(fed(inputs))
                return super().compute_loss(model, inputs, *args, **options)

        replies = {}
        for side in ("chosen", "rejected"):
            missing = [example.get("id") for example in job.examples if side not in example]
            if missing:
                raise ValueError(f"example {missing[0]!r} has no {side!r} answer; dpo trains on chosen/rejected pairs")
            pairs = [{**example, "completion": example[side]} for example in job.examples]
            replies[side] = encode(job.lm, pairs, max_length=job.config.max_length)
        rows = [
            {"prompt_ids": good.prompt, "chosen_ids": good.response, "rejected_ids": bad.response}
            for good, bad in zip(replies["chosen"], replies["rejected"], strict=True)
        ]
        arguments = job.made(
            DPOConfig,
            beta=self.config.beta,
            loss_type=[self.config.loss_type],
            label_smoothing=self.config.label_smoothing,
            max_length=None,
            disable_dropout=True,
        )
        reference = job.frozen_copy() if job.config.peft is None else None
        return Trainer(job, ref_model=reference, args=arguments, train_dataset=Dataset.from_list(rows))
