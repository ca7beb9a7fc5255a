"""What the autoregressive algorithms share: one run of a TRL trainer under this project's data order, schedule and state.

TRL computes the loss and drives the steps. Order of the data, learning rate, optimiser, seeds, resumable state, points and
budget are those of the diffusion loop, so that both kinds of model are trained under one protocol.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed
from dare_bench.dare.training import checkpoint, optim
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.data import Encoded
from dare_bench.dare.training.mixture import Mixture
from dare_bench.dare.training.progress import Diverged, Run, stop_step
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import TrainerCallback

OnPoint = Callable[[int, dict[str, float], dict[str, float]], None]
#: Entries of TRL's logs that are times, counts kept elsewhere, or ours under another name.
_NOT_METRICS = {"epoch", "learning_rate", "num_tokens", "step_time", "total_flos"}


@dataclass
class Job:
    """One run, as the algorithms and the trainer see it.

    Attributes:
        lm: policy; changed in place.
        config: optimisation.
        seed: of every draw.
        out_dir: where states are written.
        examples, encoded: the data, in one order.
        mixture: which of them fill which step.
        run: step and totals; starts where the state ends.
        state: resumable state to load, or null.
        rows: rows of one optimiser step.
        inner: optimiser steps on one batch.
        reward_funcs, reward_weights, decoder: of rollouts.
        on_point: receives (step, metrics, timing).
        optimizers: made when the trainer starts.
    """

    lm: DiffusionLM
    config: TrainConfig
    seed: int
    out_dir: Path
    examples: Sequence[Mapping[str, Any]]
    encoded: Sequence[Encoded]
    mixture: Mixture
    run: Run
    state: Path | None
    rows: int
    inner: int = 1
    reward_funcs: Sequence[Callable[..., Any]] = ()
    reward_weights: Sequence[float] | None = None
    decoder: DecoderConfig | None = None
    on_point: OnPoint | None = None
    optimizers: dict[str, Optimizer] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        """Step at which the run ends."""
        return stop_step(self.config)

    @property
    def micro_rows(self) -> int:
        """Rows of one forward-backward."""
        return self.config.micro_batch_size or self.rows

    def picks(self, cycle: int) -> list[int]:
        """Indices of the examples of one cycle (an optimiser step, or a rollout with all steps on it)."""
        cycles = -(-self.config.steps // self.inner)
        return self.mixture.pick(seed=self.seed, step=cycle, total_steps=cycles, size=self.config.batch_size)

    def frozen_copy(self) -> torch.nn.Module:
        """The network as it is now, for a reference policy."""
        copy = deepcopy(self.lm.model).eval()
        return copy.requires_grad_(False)

    def tokenizer(self) -> Any:
        """A tokenizer that TRL may change: pad token and chat template of the family where it has none."""
        copy = deepcopy(self.lm._chat().tokenizer)
        copy.chat_template = self.lm._chat().template
        if copy.pad_token is None:
            copy.pad_token = copy.convert_ids_to_tokens(self.lm.pad_token_id)
        return copy

    def adapter(self) -> Any:
        """peft's settings of the family's targets, or None for full fine-tuning."""
        if self.config.peft is None:
            return None
        from peft import LoraConfig

        return LoraConfig(
            r=self.config.peft.r,
            lora_alpha=self.config.peft.alpha,
            lora_dropout=self.config.peft.dropout,
            target_modules=self.lm.family.lora_targets,
            bias="none",
        )

    def arguments(self) -> dict[str, Any]:
        """Arguments of every TRL config: nothing is written, reported or uploaded by it."""
        return {
            "output_dir": str(self.out_dir),
            "max_steps": self.stop - self.run.step,
            "per_device_train_batch_size": self.micro_rows,
            "gradient_accumulation_steps": self.rows // self.micro_rows,
            "max_grad_norm": self.config.grad_clip,
            "gradient_checkpointing": self.config.gradient_checkpointing,
            "bf16": self.config.dtype == "bfloat16",
            "seed": self.seed % 2**32,
            "use_cpu": self.lm.device.type == "cpu",
            "logging_strategy": "steps",
            "logging_steps": 1,
            "logging_nan_inf_filter": False,
            "save_strategy": "no",
            "eval_strategy": "no",
            "report_to": "none",
            "push_to_hub": False,
            "disable_tqdm": True,
            "remove_unused_columns": False,
        }

    def made(self, config_class: type, **options: Any) -> Any:
        """A TRL config on the device of the model: a worker owns one device, whatever else it sees."""
        arguments = config_class(**self.arguments(), **options)
        device = arguments.device  # sets up the devices
        if device.type == "cuda":
            torch.cuda.set_device(self.lm.device)
            arguments._n_gpu = 1
        return arguments

    def count(self, tokens: int) -> None:
        """Budget of tokens read with a backward pass: 6 N each."""
        self.run.add(train_tokens=tokens, train_flops=6.0 * self.lm.dims.active * tokens)

    def count_scored(self, tokens: int) -> None:
        """Budget of tokens only scored: 2 N each."""
        self.run.add(train_flops=2.0 * self.lm.dims.active * tokens)


class Order(Sampler[int]):
    """The examples of the steps that are left, in order; `repeat` and `group` as policy-gradient rollouts need them."""

    def __init__(self, job: Job, *, group: int = 1, repeat: int = 1) -> None:
        self.job, self.group, self.repeat = job, group, repeat
        self.cycles = range(job.run.step // job.inner, -(-job.stop // job.inner))

    def __iter__(self) -> Any:
        for cycle in self.cycles:
            rows = [index for index in self.job.picks(cycle) for _ in range(self.group)]
            for _ in range(self.repeat):
                yield from rows

    def __len__(self) -> int:
        return len(self.cycles) * self.job.config.batch_size * self.group * self.repeat


class Plumbing:
    """Mixed into a TRL trainer, before it: this project's order, optimiser, schedule and accounting."""

    def __init__(self, job: Job, **options: Any) -> None:
        self.job = job
        job.lm.model.generation_config.eos_token_id = sorted(job.lm.stop_token_ids)
        super().__init__(
            model=job.lm.model,
            processing_class=job.tokenizer(),
            peft_config=job.adapter(),
            callbacks=[Progress(job)],
            **options,
        )
        from transformers.trainer_callback import PrinterCallback, ProgressCallback

        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)

    def _send_telemetry(self) -> None:
        """Nothing about a run leaves the machine."""

    def _prepare_dataset(self, dataset: Any, *args: Any, **options: Any) -> Any:
        """The rows are tokenised as everything else here is."""
        return dataset

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        return Order(self.job)

    def create_optimizer(self, model: Any = None) -> Optimizer:
        """The optimiser of the diffusion loop, restored where a run continues."""
        job = self.job
        job.optimizers = optim.build(job.lm.model, job.config)
        if job.state is not None:
            checkpoint.load_state(job.state, job.lm.model, job.optimizers)
        self.optimizer = job.optimizers["adamw"]
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """The schedule as a function of the run's step."""
        start, config = self.job.run.step, self.job.config
        for group in self.job.optimizers["adamw"].param_groups:
            group["lr"] = config.lr
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda k: optim.lr_factor(start + k, config))
        return self.lr_scheduler

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """The loss of TRL; its tokens are counted."""
        self.job.count(fed(inputs))
        return super().compute_loss(model, inputs, *args, **options)


def fed(inputs: Mapping[str, Any]) -> int:
    """Tokens a forward reads, padding excluded."""
    names = ("attention_mask",) if "attention_mask" in inputs else ("prompt_mask", "completion_mask")
    return sum(int(inputs[name].sum()) for name in names)


class Progress(TrainerCallback):
    """Seeds every step, reports its point, and writes states."""

    def __init__(self, job: Job) -> None:
        self.job, self.began = job, time.perf_counter()

    def on_step_begin(self, *args: Any, **options: Any) -> None:
        """Dropout and sampling of a step depend on the run's seed and the step."""
        self.began = time.perf_counter()
        torch.manual_seed(stream_seed(self.job.seed, "dropout", self.job.run.step))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **options: Any) -> None:
        """One optimiser step is done."""
        if not logs or "loss" not in logs:
            return  # the summary at the end
        job, config = self.job, self.job.config
        metrics = {name: float(value) for name, value in logs.items() if name not in _NOT_METRICS}
        lr = config.lr * optim.lr_factor(job.run.step, config)
        bad = [name for name in ("loss", "grad_norm") if not math.isfinite(metrics.get(name, 0.0))]
        if bad:
            raise Diverged(
                f"{bad[0]} is {metrics[bad[0]]} at step {job.run.step + 1} (lr {lr:g}); lower lr or raise grad_clip. "
                "The last good state is kept."
            )
        job.run.step += 1
        step, wall = job.run.step, time.perf_counter() - self.began
        job.run.add(updates=1, samples_seen=job.rows, train_wall_s=wall)
        if job.on_point is not None and (step % config.log_every == 0 or step == job.stop):
            metrics |= {"lr": lr, "train_tokens": job.run.totals["train_tokens"]}
            job.on_point(step, metrics, {"wall_s": wall})
        every, inner = config.checkpoint_every, job.inner
        # Between two rollouts only: a continuation then sees the same ones.
        if every and step % inner == 0 and step // every > (step - inner) // every and step < job.stop:
            checkpoint.save_state(job.out_dir, step, job.lm.model, job.optimizers, job.run.totals)


def resumed(state: Path | None) -> Run:
    """Where a state ends; step 0 without one."""
    if state is None:
        return Run()
    described = json.loads((state / "state.json").read_text("utf-8"))
    return Run(int(described["step"]), dict(described["totals"]))
