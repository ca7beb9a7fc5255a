"""Optimiser steps on one batch: scores of old and reference policy, replay, clipping, accounting."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from dare_bench.dare.algorithms.base import Algorithm, Batch, Context, Rows
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed
from dare_bench.dare.training import adapters, optim, replay
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.progress import Diverged, Run, stop_step
from dare_bench.dare.training.world import ALONE, World, whole
from torch import Tensor

OnPoint = Callable[[int, dict[str, float], dict[str, float]], None]


class Stepper:
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
        world: World = ALONE,
    ) -> None:
        self.lm, self.algorithm, self.config, self.seed = lm, algorithm, config, seed
        self.optimizers, self.accelerator, self.reference, self.on_point = optimizers, accelerator, reference, on_point
        self.parameters = list(optim.trainable(lm.model).values())
        self.world = world

    def cycle(
        self,
        batch: Batch,
        made: Mapping[str, float],
        cycle: int,
        inner: int,
        run: Run,
        began: float,
        closing: Callable[[int], dict[str, float]] = lambda step: {},
    ) -> None:
        """All inner iterations on one batch. Old and reference scores come first, from the weights that rolled out.

        Args:
            batch: of the cycle.
            made: metrics of making it.
            cycle: its number.
            inner: optimiser steps on it.
            run: counters, advanced.
            began: clock when making it began.
            closing: called with the step after the last of them; what it returns is logged with that step.
        """
        advantages = self.algorithm.advantages(batch)
        needs = self.algorithm.needs
        # The last cycle of a run may be cut short: the schedule over its passes is that of a whole one.
        passes = int(getattr(getattr(self.algorithm, "config", None), "inner_iterations", inner))
        contexts = [Context(self.seed, cycle, self.config.steps, j, passes, batch) for j in range(inner)]
        with self.accelerator.autocast():
            # The first pass has the weights that rolled out: there old is what the policy gives, its ratio is 1.
            old = [self._old(batch, context) if needs.old and context.inner else None for context in contexts]
            ref = [self._ref(batch, context) if needs.ref != "none" else None for context in contexts]
        for j, context in enumerate(contexts):
            close = closing if j == inner - 1 else None
            self._step(advantages, context, old[j], ref[j], batch, {**made}, run, began, close)
            old[j] = ref[j] = None
            began = time.perf_counter()

    def _parts(self, batch: Batch, context: Context) -> Iterator[Rows]:
        """The rows of a step; made again for every use, so that only one part of them is held at a time."""
        yield from self.algorithm.rows(batch, context)

    def _set_mode(self) -> None:
        supervised = self.algorithm.needs.rollout == "none"
        # Layers recompute their activations in training mode only.
        self.lm.train(supervised or self.config.gradient_checkpointing)
        if not supervised:
            # Policy-gradient surrogates run without dropout: old and new must be the same function of the weights.
            for module in self.lm.model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.eval()

    def _old(self, batch: Batch, context: Context) -> list[Tensor]:
        self.lm.eval()
        return self._scores(self.lm, batch, context)

    def _ref(self, batch: Batch, context: Context) -> list[Tensor]:
        if self.reference is not None:
            return self._scores(self.reference, batch, context)
        self.lm.eval()
        with adapters.adapters_off(self.lm):
            return self._scores(self.lm, batch, context)

    def _scores(self, lm: DiffusionLM, batch: Batch, context: Context) -> list[Tensor]:
        size = self.config.micro_batch_size
        return [replay.score_all(lm, part, size, self.world) for part in self._parts(batch, context)]

    def _step(
        self,
        advantages: Tensor,
        context: Context,
        old: list[Tensor] | None,
        ref: list[Tensor] | None,
        batch: Batch,
        metrics: dict[str, float],
        run: Run,
        began: float,
        close: Callable[[int], dict[str, float]] | None,
    ) -> None:
        config = self.config
        lr = optim.set_lr(self.optimizers, run.step, config)
        self._set_mode()
        torch.manual_seed(stream_seed(self.seed, "dropout", run.step))
        fed = _Fed(self._parts(batch, context))
        with self.accelerator.autocast() if config.dtype != "float32" else nullcontext():
            metrics |= replay.backward(
                self.lm,
                self.algorithm,
                fed,
                advantages,
                context,
                old=old,
                ref=ref,
                micro_rows=config.micro_batch_size,
                push=self._push,
                world=self.world,
            )
        self._complete()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, config.grad_clip or math.inf)
        metrics["grad_norm"] = float(whole(norm))
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
        self._account(fed.tokens, batch, run, old is not None, ref is not None)
        if close is not None:
            metrics |= close(run.step)
        wall = time.perf_counter() - began
        run.add(train_wall_s=wall, device_wall_s=wall * self.world.size)
        if (
            self.on_point is not None
            and self.world.leads
            and (run.step % config.log_every == 0 or run.step == stop_step(config))
        ):
            metrics |= {"lr": lr, "train_tokens": run.totals["train_tokens"]}
            self.on_point(run.step, metrics, {"wall_s": wall})

    def _push(self, loss: Tensor) -> None:
        # Sharded weights average the gradients of the processes; here they shall add up.
        self.accelerator.backward(loss * self.world.size if self.world.is_sharded else loss)

    def _complete(self) -> None:
        """Gradients of all processes, and zeros where no row moved a parameter: the optimiser still decays it."""
        self.world.sum_gradients(self.parameters)
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def _account(self, fed: int, batch: Batch, run: Run, old: bool, ref: bool) -> None:
        """Budget of one step: 6 N per token forwarded with a backward pass, 2 N per token only scored."""
        active = self.lm.dims.parameters
        scored = fed * (int(old) + int(ref))
        run.add(
            updates=1,
            samples_seen=len(batch.ids),
            train_tokens=fed,
            train_flops=6.0 * active * fed + 2.0 * active * scored,
        )


class _Fed:
    """Passes rows on and counts the tokens that are fed."""

    def __init__(self, parts: Iterator[Rows]) -> None:
        self.parts, self.tokens = parts, 0

    def __iter__(self) -> Iterator[Rows]:
        for part in self.parts:
            self.tokens += part.tokens_fed
            yield part
