"""The training loop: any algorithm, full weights or adapters, resumable bit for bit on CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from dare_bench.dare.algorithms.base import Algorithm, Batch, Context, Rows
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.diffusion.block import concatenate
from dare_bench.dare.families import loading
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed, uniform
from dare_bench.dare.training import adapters, checkpoint, optim, replay
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.data import Encoded, collate, encode
from dare_bench.dare.training.mixture import Mixture, Phase
from dare_bench.dare.training.rollout import RewardFunction, rollout
from torch import Tensor

OnPoint = Callable[[int, dict[str, float], dict[str, float]], None]


class Diverged(RuntimeError):
    """The loss or a gradient became NaN or infinite; the last good state is kept."""


@dataclass(frozen=True)
class TrainResult:
    """What a run leaves.

    Attributes:
        path: checkpoint folder (`final/`), readable by `families.loading.load`.
        sha256: content hash of it.
        step: optimiser steps it has seen.
        totals: updates, samples_seen, train_tokens, rollout_tokens, rollout_nfe, train_flops, rollout_flops,
            train_wall_s.
    """

    path: Path
    sha256: str
    step: int
    totals: dict[str, Any]


@dataclass
class _Run:
    """State of a run between steps."""

    step: int = 0
    totals: dict[str, float] = field(default_factory=dict)

    def add(self, **amounts: float) -> None:
        for name, amount in amounts.items():
            self.totals[name] = self.totals.get(name, 0) + amount


def train(
    lm: DiffusionLM,
    algorithm: Algorithm,
    examples: Sequence[Mapping[str, Any]],
    config: TrainConfig,
    *,
    seed: int,
    out_dir: Path,
    base: str = "",
    reward_funcs: Sequence[RewardFunction] = (),
    reward_weights: Sequence[float] | None = None,
    decoder: DecoderConfig | None = None,
    phases: Sequence[Phase] = (),
    on_point: OnPoint | None = None,
    on_resume: Callable[[int], None] | None = None,
) -> TrainResult:
    """Train a model.

    Args:
        lm: starting weights; changed in place (left alone when the run had been finished before).
        algorithm: what is optimised.
        examples: ``{"id", "prompt": messages, "completion": str, "source": str?, ...}``; other fields reach rewards.
        config: optimisation.
        seed: of every draw of the run.
        out_dir: holds `state/` while running and `final/` when done; calling again continues or returns at once.
        base: what an adapter's base is called when it is loaded again; needed with `config.peft`.
        reward_funcs, reward_weights: for algorithms that roll out.
        decoder: rollout decoder (gen_length set); temperature comes from the algorithm.
        phases: curriculum over the examples' `source`.
        on_point: receives (step, metrics, timing); step counts from 1.
        on_resume: receives the step a continuation starts from (0 for a fresh run).

    Returns:
        The finished checkpoint.

    Raises:
        Diverged: on NaN; the state of the last checkpoint stays.
        ValueError: for settings that do not fit.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    stop = _stop_step(config)
    if config.peft is not None and not base:
        raise ValueError("adapters are saved with the name of their base; give base: a registry name, hub id or folder")
    done = checkpoint.finished(out_dir, stop)
    if done is not None:
        if on_resume is not None:
            on_resume(stop)
        return TrainResult(out_dir / "final", done["sha256"], stop, done["totals"])
    AcceleratorState._reset_state()  # accelerate keeps the precision of the first run of a process for all others
    accelerator = Accelerator(
        cpu=lm.device.type == "cpu", mixed_precision="bf16" if config.dtype == "bfloat16" else "no"
    )
    if config.peft is not None:
        adapters.inject(lm, config.peft, seed=seed)
    if config.gradient_checkpointing:
        lm.model.gradient_checkpointing_enable()
    optimizers = optim.build(lm.model, config)
    run = _Run()
    found = checkpoint.latest_state(out_dir)
    # A reference of full fine-tuning is a copy of the starting weights; with adapters it is the model without them.
    reference = _reference(lm, algorithm, adapted=config.peft is not None)
    if found is not None:
        run.step, run.totals = checkpoint.load_state(found, lm.model, optimizers)
    if on_resume is not None:
        on_resume(run.step)
    sources: dict[str, list[int]] = {}
    for index, example in enumerate(examples):
        sources.setdefault(str(example.get("source", "data")), []).append(index)
    mixture = Mixture(sources, phases)
    encoded = encode(lm, examples, max_length=config.max_length)
    stepper = _Stepper(lm, algorithm, config, seed, optimizers, accelerator, reference, on_point)
    batches = _Batches(lm, algorithm, examples, encoded, mixture, config, seed)
    batches.configure(reward_funcs, reward_weights, decoder)
    inner = batches.inner_iterations
    while run.step < stop:
        began = time.perf_counter()
        cycle = run.step // inner
        batch, metrics = batches.make(cycle, run)
        # A cycle is never cut: states are only written between cycles, so a continuation sees the same rollout.
        stepper.cycle(batch, metrics, cycle, min(inner, stop - run.step), run, began)
        if config.checkpoint_every and _crossed(run.step, inner, config.checkpoint_every) and run.step < stop:
            checkpoint.save_state(out_dir, run.step, lm.model, optimizers, run.totals)
    path = _write_final(lm, config, out_dir, base)
    result = TrainResult(path, checkpoint.folder_sha256(path), run.step, dict(run.totals))
    checkpoint.finish(out_dir, {"step": result.step, "sha256": result.sha256, "totals": result.totals})
    return result


def _stop_step(config: TrainConfig) -> int:
    if config.select == "last":
        return config.steps
    kind, _, number = config.select.partition(":")
    if kind == "step" and number.isdigit() and 0 < int(number) <= config.steps:
        return int(number)
    raise ValueError(f"select: {config.select!r}; allowed: 'last' or 'step:N' with N up to steps ({config.steps})")


def _crossed(step: int, inner: int, every: int) -> bool:
    return step // every > (step - inner) // every


def _reference(lm: DiffusionLM, algorithm: Algorithm, *, adapted: bool) -> DiffusionLM | None:
    if algorithm.needs.ref == "none" or adapted:
        return None
    import copy

    frozen = copy.deepcopy(lm.model).eval()
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    return DiffusionLM(lm.family, lm.config, frozen, lm.tokenizer)


def _write_final(lm: DiffusionLM, config: TrainConfig, out_dir: Path, base: str) -> Path:
    final = out_dir / "final"
    temporary = checkpoint.scratch(final)
    if config.peft is not None:
        adapters.save_adapter(lm, temporary, config.peft, base)
    else:
        loading.save(lm, temporary)
    checkpoint.publish(temporary, final)
    return final


class _Batches:
    """Makes the batch of a cycle: examples, or a graded rollout."""

    def __init__(
        self,
        lm: DiffusionLM,
        algorithm: Algorithm,
        examples: Sequence[Mapping[str, Any]],
        encoded: Sequence[Encoded],
        mixture: Mixture,
        config: TrainConfig,
        seed: int,
    ) -> None:
        self.lm, self.algorithm, self.examples, self.encoded = lm, algorithm, examples, encoded
        self.mixture, self.config, self.seed = mixture, config, seed
        self.options = getattr(algorithm, "config", None)
        self.rolls = algorithm.needs.rollout != "none"
        self.inner_iterations = int(getattr(self.options, "inner_iterations", 1)) if self.rolls else 1

    def configure(
        self,
        reward_funcs: Sequence[RewardFunction],
        reward_weights: Sequence[float] | None,
        decoder: DecoderConfig | None,
    ) -> None:
        """Set what rollouts need."""
        self.reward_funcs, self.reward_weights, self.decoder = reward_funcs, reward_weights, decoder
        if self.rolls and (not reward_funcs or decoder is None):
            raise ValueError(f"{self.algorithm.name} samples its own responses: it needs reward_funcs and a decoder")

    def make(self, cycle: int, run: _Run) -> tuple[Batch, dict[str, float]]:
        """The batch of one cycle (= one rollout, or one supervised step) and the metrics of making it."""
        cycles = -(-self.config.steps // self.inner_iterations)
        picked = self.mixture.pick(seed=self.seed, step=cycle, total_steps=cycles, size=self.config.batch_size)
        rows = [self.encoded[index] for index in picked]
        # An example may come twice in a batch: its slot makes the draws differ.
        rows = [replace(row, id=f"{row.id}#{slot}") for slot, row in enumerate(rows)]
        if not self.rolls:
            extra = None
            if self.config.pad_blocks:
                u = uniform([stream_seed(self.seed, "pad_blocks", cycle)], len(rows))[0]
                extra = (u * (self.config.pad_blocks + 1)).long().tolist()
            return collate(self.lm, rows, extra_blocks=extra), {}
        decoder = replace(self.decoder, temperature=float(self.options.temperature))
        rolled = rollout(
            self.lm,
            rows,
            [self.examples[index]["prompt"] for index in picked],
            decoder,
            group_size=int(self.options.group_size),
            seed=self.seed,
            step=cycle,
            reward_funcs=self.reward_funcs,
            reward_weights=self.reward_weights,
        )
        run.add(rollout_tokens=rolled.tokens, rollout_nfe=rolled.nfe, rollout_flops=rolled.flops)
        return rolled.batch, rolled.metrics


class _Stepper:
    """Optimiser steps on one batch."""

    def __init__(
        self,
        lm: DiffusionLM,
        algorithm: Algorithm,
        config: TrainConfig,
        seed: int,
        optimizers: dict[str, torch.optim.Optimizer],
        accelerator: Any,
        reference: DiffusionLM | None,
        on_point: OnPoint | None,
    ) -> None:
        self.lm, self.algorithm, self.config, self.seed = lm, algorithm, config, seed
        self.optimizers, self.accelerator, self.reference, self.on_point = optimizers, accelerator, reference, on_point
        self.parameters = list(optim.trainable(lm.model).values())

    def cycle(self, batch: Batch, made: Mapping[str, float], cycle: int, inner: int, run: _Run, began: float) -> None:
        """All inner iterations on one batch. Old and reference scores come first, from the weights that rolled out."""
        advantages = self.algorithm.advantages(batch)
        contexts = [Context(self.seed, cycle, self.config.steps, j) for j in range(inner)]
        rows = [concatenate(list(self.algorithm.rows(batch, context))) for context in contexts]
        with self.accelerator.autocast():
            needs = self.algorithm.needs
            old = [self._old(part) if needs.old and inner > 1 else None for part in rows]
            ref = [self._ref(part) if needs.ref != "none" else None for part in rows]
        for j, context in enumerate(contexts):
            self._step(rows[j], advantages, context, old[j], ref[j], batch, {**made}, run, began)
            began = time.perf_counter()

    def _set_mode(self) -> None:
        supervised = self.algorithm.needs.rollout == "none"
        # Layers recompute their activations in training mode only.
        self.lm.train(supervised or self.config.gradient_checkpointing)
        if not supervised:
            # Policy-gradient surrogates run without dropout: old and new must be the same function of the weights.
            for module in self.lm.model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.eval()

    def _old(self, rows: Rows) -> Tensor:
        self.lm.eval()
        return replay.score_all(self.lm, rows, self.config.micro_batch_size)

    def _ref(self, rows: Rows) -> Tensor:
        if self.reference is not None:
            return replay.score_all(self.reference, rows, self.config.micro_batch_size)
        with adapters.adapters_off(self.lm):
            return replay.score_all(self.lm, rows, self.config.micro_batch_size)

    def _step(
        self,
        rows: Rows,
        advantages: Tensor,
        context: Context,
        old: Tensor | None,
        ref: Tensor | None,
        batch: Batch,
        metrics: dict[str, float],
        run: _Run,
        began: float,
    ) -> None:
        config = self.config
        lr = optim.set_lr(self.optimizers, run.step, config)
        self._set_mode()
        torch.manual_seed(stream_seed(self.seed, "dropout", run.step))
        with self.accelerator.autocast() if config.dtype != "float32" else nullcontext():
            metrics |= replay.backward(
                self.lm,
                self.algorithm,
                rows,
                advantages,
                context,
                old=old,
                ref=ref,
                micro_rows=config.micro_batch_size,
                push=self.accelerator.backward,
            )
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, config.grad_clip or math.inf)
        metrics["grad_norm"] = float(norm)
        bad = [name for name in ("loss", "grad_norm") if not math.isfinite(metrics[name])]
        if bad:
            raise Diverged(
                f"{bad[0]} is {metrics[bad[0]]} at step {run.step + 1} (lr {lr:g}); lower lr or raise grad_clip. "
                "The last good state is kept."
            )
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        run.step += 1
        self._account(rows, batch, run, old is not None, ref is not None)
        wall = time.perf_counter() - began
        run.add(train_wall_s=wall)
        if self.on_point is not None and (run.step % config.log_every == 0 or run.step == _stop_step(config)):
            metrics |= {"lr": lr, "train_tokens": run.totals["train_tokens"]}
            self.on_point(run.step, metrics, {"wall_s": wall})

    def _account(self, rows: Rows, batch: Batch, run: _Run, old: bool, ref: bool) -> None:
        """Budget of one step: 6 N per token forwarded with a backward pass, 2 N per token only scored."""
        active = self.lm.dims.parameters
        fed = rows.tokens_fed
        scored = fed * (int(old) + int(ref))
        run.add(
            updates=1,
            samples_seen=len(batch.ids),
            train_tokens=fed,
            train_flops=6.0 * active * fed + 2.0 * active * scored,
        )
