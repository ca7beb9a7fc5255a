"""Rows: corrupted inputs with target positions, what the engine scores. Imports torch only when rows are made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Rows:
    """Corrupted inputs with target positions: N rows, S input length, K candidates (normally 1).

    Attributes:
        ids: int64 [N, S], what the network reads (the noisy part, for ``noisy_clean``).
        targets: int64 [N, S, K], token(s) scored at each position.
        mask: bool [N, S], positions that are scored and counted.
        weight: float [N, S], estimator weight of a position (1/t, n/k, ...), normaliser included where one is fixed.
        owner: int64 [N], index of the response in the batch.
        draw: int64 [N], Monte-Carlo draw, step or position index.
        position_ids: int64 [N, S], place of each token in its sequence.
        real: bool [N, S], False = padding.
        layout: ``full`` (the family's own attention) or ``noisy_clean`` (doubled layout of block diffusion).
        block_length: tokens per block, for ``noisy_clean``.
        context: int64 [N, L], the clean sequence, for ``noisy_clean``.
        context_real: bool [N, L].
        temperature: logits are divided by it before the log-softmax; 1 unless an algorithm scores as it samples.
    """

    ids: Tensor
    targets: Tensor
    mask: Tensor
    weight: Tensor
    owner: Tensor
    draw: Tensor
    position_ids: Tensor
    real: Tensor
    layout: Literal["full", "noisy_clean"] = "full"
    block_length: int = 0
    context: Tensor | None = None
    context_real: Tensor | None = None
    temperature: float = 1.0

    def __len__(self) -> int:
        return self.ids.shape[0]

    def select(self, index: Tensor) -> Rows:
        """The rows at `index` (int64 [n]), with columns that are padding in all of them cut off."""
        fields = {name: getattr(self, name)[index] for name in _PER_ROW}
        width = _last_true(fields["real"])
        fields |= {name: fields[name][:, :width] for name in _PER_ROW if name not in ("owner", "draw")}
        if self.context is not None:
            real = self.context_real[index]
            length = _last_true(real)
            fields |= {"context": self.context[index][:, :length], "context_real": real[:, :length]}
        return replace(self, **fields)

    def to(self, device: Any) -> Rows:
        """The same rows on another device."""
        names = [*_PER_ROW, *(("context", "context_real") if self.context is not None else ())]
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    @property
    def tokens_fed(self) -> int:
        """Tokens the network reads for these rows, padding excluded."""
        fed = int(self.real.sum())
        return fed if self.context_real is None else fed + int(self.context_real.sum())


_PER_ROW = ("ids", "targets", "mask", "weight", "owner", "draw", "position_ids", "real")


def _last_true(real: Tensor) -> int:
    columns = real.any(0).nonzero()
    return int(columns[-1]) + 1 if len(columns) else 1
