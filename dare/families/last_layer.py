"""What follows the last attention at the positions that are read, and nowhere else: nobody sees the other rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

#: Parts of a decoder layer, in the order of a forward: every network of the families is built of these.
_PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")


@contextmanager
def only_at(trunk: nn.Module, row: Tensor, column: Tensor) -> Iterator[bool]:
    """While it is open, forwards of a decoder compute what follows the last attention at some positions only.

    Attention needs every position in every layer, because keys and values come from all of them; the last MLP (or its
    experts) and the final norm do not.

    Args:
        trunk: a network with `layers` of pre-norm decoder layers; another one is left as it is.
        row, column: int64 [N], positions of the states that will be read.

    Yields:
        Whether final hidden states come as [1, N, d], those of the positions; else they come whole.
    """
    layers = getattr(trunk, "layers", None)
    last: Any = layers[-1] if layers else None
    if last is None or torch.is_grad_enabled() or not len(row) or not all(part in last._modules for part in _PARTS):
        yield False
        return

    def forward(hidden_states: Tensor, **options: Any) -> Tensor:
        attended, _ = last.self_attn(hidden_states=last.input_layernorm(hidden_states), **options)
        states = (hidden_states[row, column] + attended[row, column])[None]
        return states + last.mlp(last.post_attention_layernorm(states))

    # Not `setattr`: that of a module looks for parameters first.
    last.__dict__["forward"] = forward
    try:
        yield True
    finally:
        del last.__dict__["forward"]
