"""What a forward saw, and what it proposes there."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from dare_bench.dare.decoding.predict import Proposal
from torch import Tensor


@dataclass
class Look:
    """What a forward of A rows saw in their blocks of b positions.

    Attributes:
        rows: int64 [A], slots.
        now: their numbers and flags before the forward (`Slots.at`).
        columns: int64 [A, b], canvas positions.
        tokens: int64 [A, b], what stood there.
        masked: bool [A, b], candidates.
        editable: bool [A, b] or None.
        scored: int64 [N] each: rows (0 ... A-1), places and columns of masked and editable positions, row by row.
        full: int64 [A], 1 where the forward fed the whole canvas.
        silent: bool [A], forwards that commit nothing.
    """

    rows: Tensor
    now: SimpleNamespace
    columns: Tensor
    tokens: Tensor
    masked: Tensor
    editable: Tensor | None
    scored: tuple[Tensor, Tensor, Tensor]
    full: Tensor
    silent: Tensor


class Proposed:
    """Proposals of N scored positions, and on demand the same on the grid [A, b].

    Args:
        flat: proposals.
        look: where they stand.
    """

    def __init__(self, flat: Proposal, look: Look) -> None:
        self.flat, self._look = flat, look
        self._grids: dict[str, Tensor] = {}

    @property
    def kept(self) -> str:
        """Name of the probability that is stored with a token: the model's own where it differs from the confidence."""
        return "probability" if self.flat.plain is None else "plain"

    def __getitem__(self, name: str) -> Tensor:
        """Values on the grid, 0 where nothing is proposed."""
        if name not in self._grids:
            values = getattr(self.flat, name)
            self._grids[name] = grid = values.new_zeros(self._look.columns.shape)
            grid[self._look.scored[:2]] = values
        return self._grids[name]
