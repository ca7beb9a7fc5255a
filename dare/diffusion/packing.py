"""Several documents in one row: positions, documents, and the two orders of the doubled layout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def packed(lengths: Sequence[int], width: int) -> tuple[Tensor, Tensor]:
    """Document and position of every token of a packed row; what remains behind the documents is one more of padding.

    Args:
        lengths: of the documents, in order.
        width: of the row.

    Returns:
        documents int64 [width] and positions int64 [width], which restart at 0 with every document.

    Raises:
        ValueError: the documents do not fit.
    """
    rest = width - sum(lengths)
    if rest < 0:
        raise ValueError(f"documents of {sum(lengths)} tokens do not fit into a row of {width}")
    sizes = torch.tensor([*lengths, *([rest] if rest else [])])
    documents = torch.arange(len(sizes)).repeat_interleave(sizes)
    starts = sizes.cumsum(0) - sizes
    return documents, torch.arange(width) - starts[documents]


def interleaved(documents: Tensor) -> Tensor:
    """From the order ``[all noisy ; all clean]`` to ``[noisy 0, clean 0, noisy 1, clean 1, ...]``.

    Args:
        documents: int64 [L], document of each token.

    Returns:
        int64 [2L]: new index -> old index.
    """
    doubled = torch.cat([documents, documents])
    return doubled.argsort(stable=True)
