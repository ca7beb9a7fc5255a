"""Mixtures of training data with a curriculum: which example fills which slot of which step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from dare_bench.dare.randomness import stream_seed, uniform
from dare_bench.dare.training.data import order


@dataclass(frozen=True)
class Phase:
    """A stretch of the run.

    Attributes:
        until: share of the run, in (0, 1], at which the phase ends.
        mix: source name -> weight.
    """

    until: float
    mix: Mapping[str, float]


class Mixture:
    """Picks examples by (seed, step) only, so that resuming needs no stored position.

    Without phases: one shuffled stream over all examples, each seen once per epoch. With phases: every slot draws a
    source by weight, then an example of it.

    Args:
        sources: source name -> indices of its examples.
        phases: in order, the last with ``until`` = 1; empty = no curriculum.

    Raises:
        ValueError: for phases out of order or naming an unknown source.
    """

    def __init__(self, sources: Mapping[str, Sequence[int]], phases: Sequence[Phase] = ()) -> None:
        self.sources = {name: list(indices) for name, indices in sources.items()}
        self.phases = list(phases)
        ends = [phase.until for phase in self.phases]
        if self.phases and (ends != sorted(ends) or ends[-1] != 1.0 or ends[0] <= 0):
            raise ValueError(f"phases end at {ends}; allowed: rising shares of the run, the last one 1.0")
        for phase in self.phases:
            unknown = sorted(set(phase.mix) - set(self.sources))
            if unknown:
                raise ValueError(f"phase names {unknown[0]!r}; the data are {', '.join(sorted(self.sources))}")
        self._all = [index for indices in self.sources.values() for index in indices]
        if not self._all:
            raise ValueError("no training examples; check `train.data`")

    def pick(self, *, seed: int, step: int, total_steps: int, size: int) -> list[int]:
        """Indices of the examples of one step.

        Args:
            seed: run seed.
            step: 0-based batch number.
            total_steps: batches of the run (for the phase).
            size: examples per batch.
        """
        if not self.phases:
            return [self._all[i] for i in order(len(self._all), seed=seed, start=step * size, size=size)]
        progress = step / max(total_steps, 1)
        phase = next(phase for phase in self.phases if progress < phase.until or phase.until == 1.0)
        names = list(phase.mix)
        edges = torch.tensor([phase.mix[name] for name in names], dtype=torch.float64).cumsum(0)
        draws = uniform([stream_seed(seed, "mixture", step)], size, 2)[0]
        which = (draws[:, :1] * edges[-1] >= edges).sum(1).clamp(max=len(names) - 1)
        chosen = []
        for source, u in zip(which.tolist(), draws[:, 1].tolist(), strict=True):
            indices = self.sources[names[source]]
            chosen.append(indices[int(u * len(indices))])
        return chosen
