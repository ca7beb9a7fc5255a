"""Training of autoregressive models by TRL, with the signature and the result of the diffusion loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.training import checkpoint
from dare_bench.dare.training.autoregressive_run import Job, OnPoint, resumed
from dare_bench.dare.training.autoregressive_settings import unsupported
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.data import encode
from dare_bench.dare.training.loop import TrainResult
from dare_bench.dare.training.mixture import Mixture, Phase
from dare_bench.dare.training.progress import Diverged, stop_step
from dare_bench.dare.training.rollout import RewardFunction
from dare_bench.dare.training.writing import write_weights


def train(
    lm: DiffusionLM,
    algorithm: Any,
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

    A run that was stopped continues from its newest state and ends in the weights of the straight run, bit for bit on
    CPU: order of the data, learning rate and every draw are functions of (seed, step), weights and optimiser are stored.

    Args:
        lm: starting weights, of the family ``autoregressive``; changed in place.
        algorithm: one that builds its trainer: ``build(job)``, ``rows_per_example``, ``inner_iterations``.
        examples: ``{"id", "prompt": messages, "completion": str, ...}``; preference pairs have ``chosen`` and
            ``rejected``; other fields reach rewards.
        config: optimisation; AdamW only.
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
        TooLong: for an example longer than `max_length`; nothing is cut.
        ValueError: for settings that do not fit.
    """
    stop = stop_step(config)
    if config.peft is not None and not base:
        raise ValueError("adapters are saved with the name of their base; give base: a registry name, hub id or folder")
    rows = config.batch_size * int(algorithm.rows_per_example)
    for name, allowed in unsupported(config, rows).items():
        raise ValueError(f"{name}: {getattr(config, name)!r}; allowed: {allowed}")
    if algorithm.needs.rollout != "none" and (not reward_funcs or decoder is None):
        raise ValueError(f"{algorithm.name} samples its own responses: it needs reward_funcs and a decoder")
    done = checkpoint.finished(out_dir, stop)
    if done is not None:
        if on_resume is not None:
            on_resume(stop)
        return TrainResult(out_dir / "final", done["sha256"], stop, done["totals"])
    state = checkpoint.latest_state(out_dir)
    run = resumed(state)
    if on_resume is not None:
        on_resume(run.step)
    sources: dict[str, list[int]] = {}
    for index, example in enumerate(examples):
        sources.setdefault(str(example.get("source", "data")), []).append(index)
    out_dir.mkdir(parents=True, exist_ok=True)
    job = Job(
        lm=lm,
        config=config,
        seed=seed,
        out_dir=out_dir,
        examples=examples,
        encoded=encode(lm, examples, max_length=config.max_length),
        mixture=Mixture(sources, phases),
        run=run,
        state=state,
        rows=rows,
        inner=int(algorithm.inner_iterations),
        reward_funcs=reward_funcs,
        reward_weights=reward_weights,
        decoder=decoder,
        on_point=on_point,
    )
    algorithm.build(job).train()
    lm.eval()
    path = out_dir / "final"
    write_weights(lm, config, path, base)
    result = TrainResult(path, checkpoint.folder_sha256(path), run.step, dict(run.totals))
    checkpoint.finish(out_dir, {"step": result.step, "sha256": result.sha256, "totals": result.totals})
    return result


__all__ = ["Diverged", "TrainResult", "train"]
