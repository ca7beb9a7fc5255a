"""The last layer's MLP at the positions that are read, and nowhere else: nobody sees what it would give elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def only_at(trunk: nn.Module, row: Tensor, column: Tensor) -> Iterator[None]:
    """While it is open, forwards of a decoder compute its last MLP (or experts) at some positions; the rest gets zeros.

    Attention needs every position in every layer, because keys and values come from all of them; what follows the last
    attention does not. Final hidden states at the given positions are what they would be, others are meaningless.

    Args:
        trunk: a network with `layers`, each with an `mlp`; another one is left as it is.
        row, column: int64 [N], positions of the states that will be read.
    """
    layers = getattr(trunk, "layers", None)
    mlp: Any = getattr(layers[-1], "mlp", None) if layers else None
    if mlp is None or not len(row) or torch.is_grad_enabled():
        yield
        return
    plain = mlp.forward

    def some(states: Tensor) -> Tensor:
        found = torch.zeros_like(states)
        found[row, column] = plain(states[row, column][None])[0]
        return found

    mlp.forward = some
    try:
        yield
    finally:
        del mlp.forward
