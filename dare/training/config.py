"""What a training run is, as data. Imports no torch: manifests are validated with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters on the family's target modules.

    Attributes:
        r: rank.
        alpha: scale numerator; the update is multiplied by alpha / r.
        dropout: adapter dropout; 0 for reinforcement learning (old and new policy must agree).
        experts: also adapt the routed experts of mixture networks; adapters are several times larger, and dropout is 0.
        quantize: hold the frozen base in ``nf4`` (4 bits) or ``int8`` while training; null = as it computes. Adapters are
            later merged into the base as it was released.
    """

    r: int = 32
    alpha: float = 64.0
    dropout: float = 0.0
    experts: bool = False
    quantize: str | None = None


@dataclass(frozen=True)
class TrainConfig:
    """Optimisation settings shared by all algorithms.

    Attributes:
        steps: optimiser steps (for reinforcement learning: rollout batches times inner iterations).
        batch_size: examples (supervised) or prompts (reinforcement learning) per optimiser step.
        micro_batch_size: rows of one forward-backward; null = the whole batch at once. Never changes the result
            beyond rounding.
        lr: peak learning rate of AdamW.
        optimizer: ``adamw``, or ``muon`` (Muon on matrices inside blocks, AdamW on the rest).
        muon_lr: learning rate of the Muon part.
        schedule: ``constant``, ``linear``, ``cosine`` or ``wsd`` (linear decay over the last `decay_ratio`).
        warmup_steps: linear warm-up.
        decay_ratio: share of the run spent decaying (``wsd``).
        betas: AdamW moments. weight_decay: decoupled decay. grad_clip: global gradient norm limit, 0 = off.
        max_length: longest prompt + completion in tokens; longer examples are an error, never cut silently.
        pad_blocks: extra blocks of end tokens appended at random to supervised targets, at most this many.
        dtype: ``float32``, or ``bfloat16`` autocast.
        gradient_checkpointing: recompute layer activations in the backward pass.
        checkpoint_every: steps between resumable checkpoints; 0 = only at the end.
        select: which checkpoint is evaluated: ``last``, ``step:N``, or ``best_on:SPLIT``: of those that
            `checkpoint_every` makes, and the last, the best on a held-out split. Selecting on test data is refused.
        validation_rows: rows of that split that are answered, greedily.
        log_every: steps between training points.
        peft: adapters, or null for full fine-tuning.
    """

    steps: int = 100
    batch_size: int = 16
    micro_batch_size: int | None = None
    lr: float = 1e-5
    optimizer: str = "adamw"
    muon_lr: float = 3e-3
    schedule: str = "constant"
    warmup_steps: int = 0
    decay_ratio: float = 0.2
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    max_length: int = 4096
    pad_blocks: int = 0
    dtype: str = "float32"
    gradient_checkpointing: bool = False
    checkpoint_every: int = 0
    select: str = "last"
    validation_rows: int = 200
    log_every: int = 1
    peft: LoraConfig | None = None


def base_dtype(config: TrainConfig) -> str:
    """Storage dtype of the weights: those that learn are kept in float32, those frozen under adapters as they compute."""
    return "float32" if config.peft is None else config.dtype
