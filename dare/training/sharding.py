"""Weights sharded over processes (FSDP2): layers are gathered while they compute, gradients scattered as they come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.training.world import whole
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard


def shard(lm: DiffusionLM) -> None:
    """Shard a model in place: each layer, what is left of the trunk, and the head are gathered one at a time.

    Args:
        lm: weights on this process's device, equal on all processes.

    Raises:
        ValueError: embedding and head share one weight, which two gathers cannot hold.
    """
    head, trunk = lm.model.get_output_embeddings(), lm.model.model
    if head.weight is lm.model.get_input_embeddings().weight:
        raise ValueError(
            f"{lm.family.name}: embedding and head are one weight here; such a model is trained replicated, not sharded"
        )
    mesh = _mesh(lm.device)
    for layer in trunk.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(trunk, mesh=mesh)
    fully_shard(head, mesh=mesh)


def _mesh(device: torch.device) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (torch.distributed.get_world_size(),))


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """Modules that gather their own weights; empty where nothing is sharded."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def whole_state(model: nn.Module) -> dict[str, Tensor] | None:
    """The `state_dict` with whole tensors on the CPU, or null where nothing is sharded. Every process must call."""
    if not sharded_modules(model):
        return None
    return {name: whole(tensor).cpu() for name, tensor in model.state_dict().items()}


@contextmanager
def gathered(lm: DiffusionLM) -> Iterator[None]:
    """Within the block every process holds all weights, so that forwards need not keep step (decoding does not)."""
    modules = sharded_modules(lm.model)
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.set_reshard_after_forward(True, recurse=False)
            module.reshard()
