"""Processes that train one model together: who computes which rows, and how gradients and scores come back together.

Every process holds the whole batch of a step and computes the same loss on it; only the forwards and backwards of its
micro-batches are divided. So groups are never cut, normalisers are global by construction, and the sum of the processes'
gradients is the gradient of one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

Item = TypeVar("Item")
#: Gradients are summed in flat buckets of about so many values.
BUCKET = 1 << 25


@dataclass(frozen=True)
class World:
    """The processes of a run; one process alone by default.

    Attributes:
        rank: number of this process.
        size: how many there are.
        is_sharded: weights are sharded over them (FSDP2): every forward is a collective, so all make equally many.
        device: where collectives take their tensors.
    """

    rank: int = 0
    size: int = 1
    is_sharded: bool = False
    device: str = "cpu"

    @property
    def leads(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def share(self, parts: Sequence[Item]) -> list[tuple[Item, bool]]:
        """The parts this process computes, with whether they count.

        Under sharding a process without a part left repeats the first one, and the result is thrown away.
        """
        mine = [(part, True) for part in parts[self.rank :: self.size]]
        if self.is_sharded and parts:
            most = -(-len(parts) // self.size)
            mine += [(parts[0], False)] * (most - len(mine))
        return mine

    def total(self, values: Tensor) -> Tensor:
        """The sum over processes of a tensor, on the tensor's device."""
        if self.size == 1:
            return values
        shared = values.to(self.device)
        dist.all_reduce(shared)
        return shared.to(values.device)

    def totals(self, values: dict[str, float]) -> dict[str, float]:
        """The sum over processes of numbers by name."""
        if self.size == 1:
            return values
        summed: dict[str, float] = {}
        for each in self.gather(values):
            for name, value in each.items():
                summed[name] = summed.get(name, 0.0) + value
        return summed

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in the order of ranks."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def interleave(self, mine: Sequence[Item], count: int) -> list[Item]:
        """Undo ``parts[rank::size]``: all items in their first order.

        Args:
            mine: this process's items.
            count: of all items.
        """
        found = self.gather(list(mine))
        return [found[index % self.size][index // self.size] for index in range(count)]

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Add the gradients of all processes; those of sharded weights were added as they came.

        A parameter that got no gradient here (no row of this process used it) counts as zero.
        """
        if self.size == 1:
            return
        plain = [parameter for parameter in parameters if not is_sharded(parameter)]
        for bucket in _buckets(plain):
            grads = [each.grad if each.grad is not None else torch.zeros_like(each) for each in bucket]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            dist.all_reduce(flat)
            begin = 0
            for each, grad in zip(bucket, grads, strict=True):
                each.grad = flat[begin : begin + grad.numel()].view_as(grad).clone()
                begin += grad.numel()

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


#: One process by itself.
ALONE = World()


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> Iterable[list[torch.nn.Parameter]]:
    bucket: list[torch.nn.Parameter] = []
    held = 0
    for parameter in parameters:
        if bucket and (held + parameter.numel() > BUCKET or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, held = [], 0
        bucket.append(parameter)
        held += parameter.numel()
    if bucket:
        yield bucket


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is one process's part of a sharded one."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, gathered from the processes if it is sharded (then every process must call)."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def fill(target: Tensor, values: Tensor) -> None:
    """Copy values into a tensor, each process its part if it is sharded."""
    if not is_sharded(target):
        target.copy_(values)
        return
    from torch.distributed.tensor import distribute_tensor

    part = distribute_tensor(values.to(target.device, target.dtype), target.device_mesh, target.placements)
    target.copy_(part)


def current(*, sharded: bool = False, on_cpu: bool = False) -> World:
    """The world this process was started in: torchrun's variables, joined through accelerate.

    Args:
        sharded: shard the weights, if there is more than one process.
        on_cpu: the weights are on the CPU, whatever else this machine has.
    """
    from accelerate import PartialState

    state = PartialState(cpu=on_cpu)
    device = str(state.device) if state.device.type == "cuda" else "cpu"
    return World(state.process_index, state.num_processes, sharded and state.num_processes > 1, device)
