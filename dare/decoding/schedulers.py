"""How many positions a denoising step commits: one function per rule, registered by name. Imports no torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dare_bench.dare.decoding import options as option_specs
from dare_bench.dare.decoding.options import number
from dare_bench.dare.families.registry import UnknownName
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")

#: Sizes of the blocks of a generation, each with its steps.
Layout = list[tuple[int, int]]


@dataclass
class ScheduleState:
    """What a scheduler decides on; everything int64 [A], one number per row.

    Attributes:
        masks_now: masked positions of the block before this step.
        masks_at_start: masked positions when the block began; the block's length in block families.
        step: denoising step inside the block, from 0.
        steps: nominal steps of the block.
        block: index of the block, from 0.
        committed: positions committed in this block so far.
    """

    masks_now: Tensor
    masks_at_start: Tensor
    step: Tensor
    steps: Tensor
    block: Tensor
    committed: Tensor


@dataclass(frozen=True)
class SchedulerEntry:
    """A registered rule.

    Attributes:
        name: as in manifests.
        options: name -> default and allowed values.
        summary: one line.
        count: (state, **options) -> int64 [A], positions to commit in this step. It may exceed the masks that are left.
        layout: (gen_length, block_length, **options) -> blocks with their steps; null = equal blocks, equal steps.
    """

    name: str
    options: Mapping[str, option_specs.Option]
    summary: str
    count: Callable[..., Tensor]
    layout: Callable[..., Layout] | None = None


_SCHEDULERS: dict[str, SchedulerEntry] = {}


def scheduler(
    name: str, *, layout: Callable[..., Layout] | None = None, **options: option_specs.Option
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a count function; further keyword arguments are its options.

    Raises:
        ValueError: for a name that is taken.
    """

    def add(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if name in _SCHEDULERS:
            raise ValueError(f"scheduler {name!r} is registered twice")
        summary = (function.__doc__ or "").strip().splitlines()[0]
        _SCHEDULERS[name] = SchedulerEntry(name, options, summary, function, layout)
        return function

    return add


def schedulers() -> dict[str, SchedulerEntry]:
    """All schedulers by name."""
    return dict(sorted(_SCHEDULERS.items()))


def resolve(name: str, options: Mapping[str, Any]) -> tuple[SchedulerEntry, dict[str, Any]]:
    """A scheduler with its complete options.

    Raises:
        UnknownName: for an unknown scheduler or option.
        ValueError: for a missing option or a value that is not allowed.
    """
    if name not in _SCHEDULERS:
        raise UnknownName("scheduler", name, list(_SCHEDULERS))
    entry = _SCHEDULERS[name]
    return entry, option_specs.complete("scheduler", name, entry.options, options)


def quota(masks: int, steps: int) -> list[int]:
    """Spread `masks` over `steps`, the first steps one more.

    Args:
        masks: masked positions of a block.
        steps: denoising steps of the block, at least 1.

    Returns:
        `steps` counts that sum to `masks`.

    Source: ML-GSAI/LLaDA `get_num_transfer_tokens`; JetAstra/SDAR.
    """
    base, rest = divmod(masks, steps)
    return [base + (index < rest) for index in range(steps)]


@scheduler("quota")
def quota_count(state: ScheduleState) -> Tensor:
    """Spread the block's masks evenly over its steps, the first steps one more; then one per step.

    Source: ML-GSAI/LLaDA `get_num_transfer_tokens`; JetAstra/SDAR.
    """
    rest = state.masks_at_start % state.steps
    planned = state.masks_at_start // state.steps + (state.step < rest)
    return torch.where(state.step < state.steps, planned, 1)


@functools.lru_cache(maxsize=64)
def _shares(steps: int, eps: float) -> Tensor:
    """Share of the masks that each step commits, float32 [steps]: 1 - t[i + 1] / t[i], 1 in the last step."""
    times = torch.linspace(1, eps, steps + 1, dtype=torch.float32)
    shares = 1 - times[1:] / times[:-1]
    shares[-1] = 1.0
    return shares


def transfer_share(step: Tensor, steps: Tensor, eps: float) -> Tensor:
    """Probability that a masked position is committed in a step of Dream's process.

    Args:
        step: int64 [A], from 0.
        steps: int64 [A], at least 1.
        eps: last time.

    Returns:
        float32 [A], in the arithmetic of the published sampler (float32 `linspace` on the CPU); 1 from the last step on.
    """
    share = torch.ones(step.shape, dtype=torch.float32, device=step.device)
    for count in steps.unique().tolist():  # a decoder has one number of steps, or few
        table = _shares(count, eps).to(step.device)
        share = torch.where(steps == count, table[step.clamp(max=count - 1)], share)
    return share


@scheduler("timesteps", eps=number("a number in [0, 1)", lambda value: 0 <= value < 1, default=1e-3))
def timesteps(state: ScheduleState, *, eps: float) -> Tensor:
    """Commit the share of the masks by which the time falls, rounded down; the last step commits the rest.

    With as many steps as positions the first step commits none and the last one two.

    Source: Dream `generation_utils.py`, in float32 as there; every row counts its own masks.
    """
    share = transfer_share(state.step, state.steps, eps)
    return (state.masks_now.to(torch.float32) * share).floor().to(torch.int64)


def ass_layout(gen_length: int, block_length: int, *, blocks: int) -> Layout:
    """Blocks of the doubling schedule: the first takes the small powers of two, each later one is one step.

    Args:
        gen_length: tokens to generate.
        block_length: has no effect, the sizes follow from `blocks`.
        blocks: their number.

    Returns:
        [(size, steps), ...], sizes sum to `gen_length`, steps to floor(log2(gen_length)).

    Raises:
        ValueError: for more blocks than steps.
    """
    steps = max(gen_length.bit_length() - 1, 1)
    if blocks > steps:
        raise ValueError(
            f"scheduler 'ass': blocks is {blocks}; allowed: at most floor(log2(gen_length)) = {steps} "
            f"for {gen_length} tokens"
        )
    later = [2**exponent for exponent in range(steps - blocks + 1, steps)]
    if later:
        later[-1] += 1 + gen_length - 2**steps
    return [(gen_length - sum(later), steps - blocks + 1), *((size, 1) for size in later)]


@scheduler("ass", layout=ass_layout, blocks=option_specs.count(default=1))
def ass(state: ScheduleState, *, blocks: int) -> Tensor:
    """Commit 1, 2, 4, 8 ... positions; the last step of a block commits the rest.

    Source: yjyddq/EOSER-ASS-RL `ass_generate` (arXiv 2509.23924).
    """
    doubling = torch.ones_like(state.step) << state.step.clamp(max=62)
    return torch.where(state.step < state.steps - 1, doubling, state.masks_now)


@scheduler("cumulative")
def cumulative(state: ScheduleState) -> Tensor:
    """An even share per step and what earlier steps left of theirs, at least one.

    Source: NVlabs/Fast-dLLM `dream/model/generation_utils.py`, ``confidence_threshold``.
    """
    share = state.masks_at_start // state.steps
    return (torch.minimum(state.step + 1, state.steps) * share - state.committed).clamp(min=1)


@scheduler("linear")
def linear(state: ScheduleState) -> Tensor:
    """Keep as many masks as a line from all to none has left behind the step, rounded down.

    Source: autonomousvision/mdpo `src/llada/generate.py`, MaskGIT's schedule (arXiv 2202.04200).
    """
    later = (state.steps - state.step - 1).clamp(min=0)
    return (state.masks_now - state.masks_at_start * later // state.steps).clamp(min=0)


@scheduler("cosine")
def cosine(state: ScheduleState) -> Tensor:
    """Keep as many masks as a quarter of a cosine has left behind the step, rounded down: few at first, then more.

    Source: autonomousvision/mdpo `src/llada/generate.py`, MaskGIT's schedule (arXiv 2202.04200).
    """
    passed = torch.minimum(state.step + 1, state.steps).double() / state.steps
    left = (state.masks_at_start * (passed * (torch.pi / 2)).cos() + 1e-9).floor().to(torch.int64)
    return (state.masks_now - left).clamp(min=0)
