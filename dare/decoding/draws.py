"""Random draws of decoding: counters by default, torch's generator in the published layouts on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from dare_bench.dare.randomness import stream_seed, uniform
from torch import Tensor

Uniforms = Callable[[slice], Tensor]


class Draws(Protocol):
    """What the engine draws in one forward; rows index slots, columns are canvas positions."""

    def tokens(self, rows: Tensor, columns: Tensor, candidates: Tensor, nfe: Tensor, vocab: int) -> Uniforms:
        """Uniforms float64 in (0, 1) for slices of the candidates (row by row): slice -> [n, V]."""

    def positions(self, rows: Tensor, columns: Tensor, candidates: Tensor, nfe: Tensor) -> Tensor:
        """Uniforms float64 [A, b]."""

    def subset(self, weights: Tensor, counts: Tensor, rows: Tensor, columns: Tensor, nfe: Tensor) -> Tensor:
        """`counts` positions of each row without replacement, proportional to weights: bool [A, b]."""


class CounterDraws:
    """Every draw is a function of (seed of the row, position, forward of the row): batches change nothing.

    Args:
        seeds: int64 [R], of the slots; written when a slot is filled.
        prompt: int64 [R], prompt lengths; positions count from the prompt's end.
    """

    def __init__(self, seeds: Tensor, prompt: Tensor) -> None:
        self.seeds, self.prompt = seeds, prompt

    def _at(self, stream: str, rows: Tensor, columns: Tensor, nfe: Tensor) -> Tensor:
        salt = stream_seed(stream)
        generated = columns - self.prompt[rows][:, None]
        return (self.seeds[rows] ^ salt)[:, None] + generated * 0x9E3779B1 + nfe[:, None] * 0x85EBCA77C2B2

    def tokens(self, rows: Tensor, columns: Tensor, candidates: Tensor, nfe: Tensor, vocab: int) -> Uniforms:
        seeds = self._at("token", rows, columns, nfe)[candidates]
        return lambda cut: uniform(seeds[cut], vocab)

    def positions(self, rows: Tensor, columns: Tensor, candidates: Tensor, nfe: Tensor) -> Tensor:
        return uniform(self._at("select", rows, columns, nfe).reshape(-1), 1).view(columns.shape)

    def subset(self, weights: Tensor, counts: Tensor, rows: Tensor, columns: Tensor, nfe: Tensor) -> Tensor:
        # The best of log weight + Gumbel noise are a draw without replacement.
        u = uniform(self._at("subset", rows, columns, nfe).reshape(-1), 1).view(columns.shape)
        keys = weights.double().log() - (-u.log()).log()
        rank = keys.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return (rank < counts[:, None]) & (weights > 0)


class TorchDraws:
    """Draws of one row from a torch generator, laid out as the published samplers do: for comparison with them only.

    Args:
        seed: as given to `torch.manual_seed` before the published call.
        canvas: length of the canvas.
        per_mask: position draws cover the masked positions (Dream's ``origin``), not the canvas (LLaDA's ``random``).
    """

    def __init__(self, seed: int, canvas: int, *, per_mask: bool) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.canvas, self.per_mask = canvas, per_mask

    def tokens(self, rows: Tensor, columns: Tensor, candidates: Tensor, nfe: Tensor, vocab: int) -> Uniforms:
        drawn = torch.rand((self.canvas, vocab), dtype=torch.float64, generator=self.generator)[columns[candidates]]
        return lambda cut: drawn[cut]

    def positions(self, rows: Tensor, columns: Tensor, candidates: Tensor, nfe: Tensor) -> Tensor:
        if not self.per_mask:
            drawn = torch.rand((self.canvas,), generator=self.generator)
            return drawn[columns.clamp(max=self.canvas - 1)].double()
        found = torch.ones(columns.shape, dtype=torch.float64)
        found[candidates] = torch.rand((int(candidates.sum()),), generator=self.generator).double()
        return found

    def subset(self, weights: Tensor, counts: Tensor, rows: Tensor, columns: Tensor, nfe: Tensor) -> Tensor:
        line = weights.new_zeros(self.canvas, dtype=torch.float32)
        inside = columns[0] < self.canvas
        line[columns[0][inside]] = weights[0][inside].float()
        count = int(counts[0])
        chosen = torch.zeros(self.canvas, dtype=torch.bool)
        if count:
            chosen[torch.multinomial(line, count, generator=self.generator)] = True
        return (chosen[columns.clamp(max=self.canvas - 1)]) & inside
