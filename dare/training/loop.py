"""The training loop: any algorithm, full weights or adapters, resumable bit for bit on CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from dare_bench.dare.algorithms.base import Algorithm
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.training import adapters, checkpoint, optim, quantised, sharding
from dare_bench.dare.training import engine as engines
from dare_bench.dare.training.batches import Batches
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.data import encode
from dare_bench.dare.training.engine import EngineConfig
from dare_bench.dare.training.mixture import Mixture, Phase
from dare_bench.dare.training.progress import BEST_ON, Diverged, Run, stop_step
from dare_bench.dare.training.rollout import RewardFunction
from dare_bench.dare.training.rollout_remote import RemoteSampler
from dare_bench.dare.training.stepper import OnPoint, Stepper
from dare_bench.dare.training.validation import Best, Validation
from dare_bench.dare.training.world import World, current
from dare_bench.dare.training.writing import write_weights


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
    validation: Validation | None = None,
    sharded: bool = False,
    engine: EngineConfig | None = None,
) -> TrainResult:
    """Train a model.

    In processes started by torchrun all train the same model: they divide rollouts and micro-batches, and the result is
    that of one process. The first of them writes and reports.

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
        validation: held-out rows, for ``select: best_on:SPLIT``: the checkpoint that scores best on them is kept.
        sharded: shard weights, gradients and moments over the processes (FSDP2), instead of a copy in each.
        engine: a server that samples the rollouts and loads the weights before each, instead of this process.

    Returns:
        The finished checkpoint.

    Raises:
        Diverged: on NaN; the state of the last checkpoint stays.
        ValueError: for settings that do not fit.
        RemoteError, EngineError: the engine failed; the state of the last checkpoint stays.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    stop = stop_step(config)
    if config.peft is not None and not base:
        raise ValueError("adapters are saved with the name of their base; give base: a registry name, hub id or folder")
    if engine is not None:
        engines.check(engine, algorithm.name, algorithm.needs, adapted=config.peft is not None)
    done = checkpoint.finished(out_dir, stop)
    if done is not None:
        if on_resume is not None:
            on_resume(stop)
        return TrainResult(out_dir / "final", done["sha256"], done["step"], done["totals"])
    world = current(sharded=sharded, on_cpu=lm.device.type == "cpu")
    _check_world(world, config)
    AcceleratorState._reset_state()  # accelerate keeps the precision of the first run of a process for all others
    accelerator = Accelerator(
        cpu=lm.device.type == "cpu", mixed_precision="bf16" if config.dtype == "bfloat16" else "no"
    )
    if config.peft is not None and config.peft.quantize is not None:
        quantised.quantise(lm, config.peft.quantize, compute=_compute_dtype(config))
    if config.peft is not None:
        adapters.inject(lm, config.peft, seed=seed)
    # A reference of full fine-tuning is a copy of the starting weights; with adapters it is the model without them.
    reference = _reference(lm, algorithm, adapted=config.peft is not None)
    if config.gradient_checkpointing:
        # transformers renames the method within the range of versions that is supported here.
        enable = getattr(lm.model, "activation_checkpointing_enable", None) or lm.model.gradient_checkpointing_enable
        enable()
    if world.is_sharded:
        sharding.shard(lm)
        if reference is not None:
            sharding.shard(reference)
    optimizers = optim.build(lm.model, config)
    run = Run()
    found = checkpoint.latest_state(out_dir)
    if found is not None:
        run.step, run.totals = checkpoint.load_state(found, lm.model, optimizers)
    if on_resume is not None and world.leads:
        on_resume(run.step)
    sources: dict[str, list[int]] = {}
    for index, example in enumerate(examples):
        sources.setdefault(str(example.get("source", "data")), []).append(index)
    mixture = Mixture(sources, phases)
    encoded = encode(lm, examples, max_length=config.max_length)
    stepper = Stepper(lm, algorithm, config, seed, optimizers, accelerator, reference, on_point, world)
    batches = Batches(lm, algorithm, examples, encoded, mixture, config, seed, world)
    write = partial(write_weights, lm, config, base=base, world=world)
    sampler = None if engine is None else RemoteSampler(engine, out_dir, write, world)
    batches.configure(reward_funcs, reward_weights, decoder, sampler)
    inner = batches.inner_iterations
    best = _best(config, validation, out_dir, write, world)

    def closing(step: int) -> dict[str, float]:
        """Score the weights at the end of a cycle, where a checkpoint is due."""
        if best is None or validation is None:
            return {}
        if not _crossed(step, inner, config.checkpoint_every) and step < stop:
            return {}
        score = validation.score(lm, max_length=config.max_length, world=world)
        best.offer(step, score)
        return {"validation": score}

    while run.step < stop:
        began = time.perf_counter()
        cycle = run.step // inner
        batch, metrics = batches.make(cycle, run)
        # A cycle is never cut: states are only written between cycles, so a continuation sees the same rollout.
        stepper.cycle(batch, metrics, cycle, min(inner, stop - run.step), run, began, closing)
        if config.checkpoint_every and _crossed(run.step, inner, config.checkpoint_every) and run.step < stop:
            checkpoint.save_state(out_dir, run.step, lm.model, optimizers, run.totals, leads=world.leads)
    path, step = out_dir / "final", run.step
    if best is None:
        write_weights(lm, config, path, base, world)
    else:
        step = best.take(path)
    result = TrainResult(path, checkpoint.folder_sha256(path), step, dict(run.totals))
    if world.leads:
        checkpoint.finish(out_dir, {"step": step, "stop": stop, "sha256": result.sha256, "totals": result.totals})
    if sampler is not None:
        sampler.close()
    world.wait()
    return result


def _compute_dtype(config: TrainConfig) -> torch.dtype:
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32


def _check_world(world: World, config: TrainConfig) -> None:
    if not world.is_sharded:
        return
    if config.optimizer == "muon":
        raise ValueError("optimizer: 'muon' needs whole matrices; allowed with sharded weights: 'adamw'")
    if config.peft is not None and config.peft.quantize is not None:
        raise ValueError(
            f"peft.quantize: {config.peft.quantize!r} cannot be sharded; train replicated, or without quantize"
        )


def _best(
    config: TrainConfig, validation: Validation | None, out_dir: Path, write: Callable[[Path], None], world: World
) -> Best | None:
    if not config.select.startswith(BEST_ON):
        return None
    if validation is None or not config.checkpoint_every:
        raise ValueError(f"select: {config.select!r} needs held-out rows and checkpoint_every of at least 1")
    return Best(out_dir, write, world)


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


__all__ = ["Diverged", "TrainResult", "train"]
