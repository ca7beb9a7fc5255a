"""Optimisers and learning-rate schedules, and their state as plain tensors."""

from __future__ import annotations

import math

import torch
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.world import fill, whole
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

SCHEDULES = ("constant", "linear", "cosine", "wsd")


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that require a gradient, by name, in model order."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def build(model: nn.Module, config: TrainConfig) -> dict[str, Optimizer]:
    """Optimisers of a model.

    Args:
        model: frozen parameters are left out.
        config: ``adamw``: one AdamW. ``muon``: Muon on the matrices inside layers (momentum orthogonalised), AdamW on
            embeddings, head and vectors.

    Returns:
        ``{"adamw": ..., "muon": ...}``; parameter groups carry `names` for saving.

    Source:
        Muon: Jordan et al. 2024, as implemented by `torch.optim.Muon`.
    """
    parameters = trainable(model)
    matrices = {
        name: parameter
        for name, parameter in parameters.items()
        if config.optimizer == "muon" and parameter.ndim == 2 and ".layers." in name
    }
    rest = {name: parameter for name, parameter in parameters.items() if name not in matrices}
    found: dict[str, Optimizer] = {}
    if rest:  # adapters are matrices inside layers: Muon then takes all
        found["adamw"] = AdamW(list(rest.values()), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
        found["adamw"].param_groups[0]["names"] = list(rest)
    if matrices:
        found["muon"] = Muon(list(matrices.values()), lr=config.muon_lr, weight_decay=config.weight_decay)
        found["muon"].param_groups[0]["names"] = list(matrices)
    return found


def lr_factor(step: int, config: TrainConfig) -> float:
    """Multiplier of the peak learning rate at a step (0-based).

    Args:
        step: optimiser step about to be taken.
        config: schedule, warm-up and length.

    Returns:
        In [0, 1].
    """
    warm = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    progress = min(1.0, step / max(config.steps, 1))
    if config.schedule == "constant":
        decay = 1.0
    elif config.schedule == "linear":
        decay = 1.0 - progress
    elif config.schedule == "cosine":
        decay = 0.5 * (1.0 + math.cos(math.pi * progress))
    elif config.schedule == "wsd":
        decay = min(1.0, (1.0 - progress) / config.decay_ratio) if config.decay_ratio else 1.0
    else:
        raise ValueError(f"schedule: {config.schedule!r}; allowed: {', '.join(SCHEDULES)}")
    return warm * decay


def set_lr(optimizers: dict[str, Optimizer], step: int, config: TrainConfig) -> float:
    """Set the learning rates of a step; returns AdamW's."""
    factor = lr_factor(step, config)
    peaks = {"adamw": config.lr, "muon": config.muon_lr}
    for name, optimizer in optimizers.items():
        for group in optimizer.param_groups:
            group["lr"] = peaks[name] * factor
    return config.lr * factor


def state_tensors(optimizers: dict[str, Optimizer]) -> dict[str, Tensor]:
    """All optimiser state as named tensors (no pickle)."""
    found: dict[str, Tensor] = {}
    for kind, optimizer in optimizers.items():
        for group in optimizer.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                for key, value in optimizer.state[parameter].items():
                    found[f"{kind}/{name}/{key}"] = whole(torch.as_tensor(value).detach()).cpu().contiguous()
    return found


def load_state_tensors(optimizers: dict[str, Optimizer], tensors: dict[str, Tensor]) -> None:
    """Restore what `state_tensors` gave, bit for bit.

    Raises:
        ValueError: if the state belongs to other parameters.
    """
    left = dict(tensors)
    for kind, optimizer in optimizers.items():
        for group in optimizer.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                prefix = f"{kind}/{name}/"
                keys = [key for key in left if key.startswith(prefix)]
                state = {}
                for key in keys:
                    value = left.pop(key)
                    # `step` stays on the CPU, as the optimisers keep it; moments live beside their parameter.
                    state[key.removeprefix(prefix)] = value if value.ndim == 0 else _beside(parameter, value)
                optimizer.state[parameter] = state
    if left:
        raise ValueError(
            f"optimiser state of unknown parameters: {', '.join(sorted(left)[:3])}; delete the state folder"
        )


def _beside(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """A moment in the place and layout of its parameter, in its own dtype."""
    moment = torch.empty_like(parameter.data, dtype=value.dtype)
    fill(moment, value)
    return moment
