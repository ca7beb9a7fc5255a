"""Group-relative policy optimisation of an autoregressive model, by TRL."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dare_bench.dare.algorithms.base import Needs
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.training.autoregressive_settings import unsupported

if TYPE_CHECKING:
    from dare_bench.dare.training.autoregressive_run import Job


@dataclass(frozen=True)
class GRPOAutoregressiveConfig:
    """Options of `grpo`; defaults as in TRL.

    Attributes:
        group_size: responses per prompt (G).
        inner_iterations: optimiser steps on one rollout batch (mu).
        beta: weight of the KL to the reference; 0 = no reference is kept.
        eps_low, eps_high: ratio clip; null eps_high = eps_low.
        loss_type: ``dapo`` (mean over the tokens of the batch), ``grpo`` (mean over responses of their token means),
            ``bnpo`` or ``dr_grpo`` (sum over tokens divided by a constant).
        scale_rewards: divide advantages by the standard deviation of the ``group``, of the ``batch``, or ``none``.
        importance_sampling_level: ratio of each ``token`` or of the ``sequence``.
        mask_truncated: leave responses without a stop token out of the loss.
        temperature: of the rollouts; log-probs of the loss are taken at the same temperature.
    """

    group_size: int = 8
    inner_iterations: int = 1
    beta: float = 0.0
    eps_low: float = 0.2
    eps_high: float | None = None
    loss_type: str = "dapo"
    scale_rewards: str = "group"
    importance_sampling_level: str = "token"
    mask_truncated: bool = False
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name, minimum in (("group_size", 2), ("inner_iterations", 1)):
            if getattr(self, name) < minimum:
                raise ValueError(f"{name}: {getattr(self, name)!r}; allowed: at least {minimum}")
        for name, allowed in (
            ("loss_type", ("dapo", "grpo", "bnpo", "dr_grpo")),
            ("scale_rewards", ("group", "batch", "none")),
            ("importance_sampling_level", ("token", "sequence")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: {getattr(self, name)!r}; allowed: {', '.join(allowed)}")
        if not self.temperature > 0:
            raise ValueError(f"temperature: {self.temperature!r}; allowed: a number > 0, or all responses are equal")
        for name in ("beta", "eps_low"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: {getattr(self, name)!r}; allowed: a number >= 0")


@register(
    "grpo",
    families={"autoregressive"},
    config=GRPOAutoregressiveConfig,
    presets={
        "paper": {"group_size": 64, "beta": 0.04, "loss_type": "grpo"},
        "dapo": {"eps_high": 0.28, "loss_type": "dapo"},
        "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    },
    train_presets={"paper": {"lr": 1e-6, "batch_size": 16}},
    check=lambda train, settings: unsupported(train, train.batch_size * settings.group_size),
)
class GRPOAutoregressive:
    """Group-relative policy gradient on sampled responses, by TRL.

    `batch_size` counts prompts, `micro_batch_size` responses. The rollouts are this project's (`dare.decoding`), each
    response with a seed of its own, as in the diffusion algorithms; scoring, advantages and loss are TRL's.

    Source:
        arXiv 2402.03300; TRL `GRPOTrainer`; dapo: arXiv 2503.14476; dr_grpo: arXiv 2503.20783.
    """

    name = "grpo"
    needs = Needs(rollout="ar", old=True, ref="frozen")

    def __init__(self, config: GRPOAutoregressiveConfig | None = None) -> None:
        self.config = config or GRPOAutoregressiveConfig()
        if self.config.beta == 0:
            self.needs = Needs(rollout="ar", old=True, ref="none")

    @property
    def rows_per_example(self) -> int:
        """Responses per prompt."""
        return self.config.group_size

    @property
    def inner_iterations(self) -> int:
        """Optimiser steps per rollout."""
        return self.config.inner_iterations

    def build(self, job: Job) -> Any:
        """The trainer of a run."""
        from dare_bench.dare.training.autoregressive_rollout import Rollouts, grader
        from dare_bench.dare.training.autoregressive_run import Order, Plumbing
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        options, full = self.config, job.config.peft is None
        accumulated = job.rows // job.micro_rows

        class Trainer(Plumbing, GRPOTrainer):
            """GRPOTrainer under this project's protocol."""

            def _get_train_sampler(self, dataset: Any = None) -> Order:
                return Order(job, group=options.group_size, repeat=options.inner_iterations * accumulated)

        # TRL would load a reference from the hub: it gets a copy of the starting weights instead.
        reference = job.frozen_copy() if options.beta and full else None
        arguments = job.made(
            GRPOConfig,
            num_generations=options.group_size,
            num_iterations=options.inner_iterations,
            steps_per_generation=accumulated,
            max_completion_length=job.decoder.gen_length,
            beta=0.0 if reference is not None else options.beta,
            epsilon=options.eps_low,
            epsilon_high=options.eps_high,
            loss_type=options.loss_type,
            scale_rewards=options.scale_rewards,
            importance_sampling_level=options.importance_sampling_level,
            mask_truncated_completions=options.mask_truncated,
            temperature=options.temperature,
            reward_weights=None if job.reward_weights is None else list(job.reward_weights),
            disable_dropout=True,
        )
        rewards: list[Callable[..., Any]] = [grader(job, function) for function in job.reward_funcs]
        rows = [{"prompt": [dict(turn) for turn in row["prompt"]], "row": i} for i, row in enumerate(job.examples)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*'rollout_func', which is an experimental feature")
            trainer = Trainer(
                job,
                reward_funcs=rewards,
                args=arguments,
                train_dataset=Dataset.from_list(rows),
                rollout_func=Rollouts(job, options),
            )
        if reference is not None:
            from trl.trainer.utils import add_fused_lm_head

            add_fused_lm_head(reference, temperature=options.temperature)
            trainer.beta, trainer.ref_model = options.beta, reference.to(job.lm.device)
        return trainer
