"""Boolean attention masks (True = may attend) built from positions. Knows nothing of the project."""

from __future__ import annotations

import torch
from torch import Tensor


def key_mask(real: Tensor) -> Tensor:
    """Close padded keys, leave every query open.

    Args:
        real: [B, K], nonzero = real token.

    Returns:
        bool [B, 1, 1, K].
    """
    return (real != 0)[:, None, None, :]


def block_causal_mask(positions: Tensor, block_length: int, key_positions: Tensor | None = None) -> Tensor:
    """A query sees the keys of its own and of earlier blocks.

    Args:
        positions: int64 [B, Q], counted from the first real token.
        block_length: tokens per block.
        key_positions: int64 [B, K]; default `positions`.

    Returns:
        bool [B, 1, Q, K].
    """
    keys = positions if key_positions is None else key_positions
    query_block = positions.div(block_length, rounding_mode="floor")
    key_block = keys.div(block_length, rounding_mode="floor")
    return (query_block[:, :, None] >= key_block[:, None, :])[:, None]


def document_mask(documents: Tensor) -> Tensor:
    """A query sees the keys of its own document (several are packed into a row).

    Args:
        documents: int64 [B, L].

    Returns:
        bool [B, 1, L, L].
    """
    return (documents[:, :, None] == documents[:, None, :])[:, None]


def doubled_mask(
    noisy_positions: Tensor,
    clean_positions: Tensor,
    block_length: int,
    *,
    noisy_real: Tensor | None = None,
    clean_real: Tensor | None = None,
    noisy_documents: Tensor | None = None,
    clean_documents: Tensor | None = None,
) -> Tensor:
    """Mask of the training layout ``[noisy ; clean]`` of block diffusion.

    noisy -> noisy: same block; noisy -> clean: strictly earlier blocks; clean -> clean: same or earlier; clean -> noisy:
    never. The noisy part may be a window of the sequence: noisy blocks see nothing of each other, so those without a
    target can be left out. Padded tokens keep only themselves, so that no query row is empty.

    Args:
        noisy_positions: int64 [B, A], position in the sequence of each noisy token.
        clean_positions: int64 [B, L].
        block_length: tokens per block.
        noisy_real, clean_real: [B, A], [B, L], nonzero = real token; default all.
        noisy_documents, clean_documents: int64 [B, A], [B, L], document of each token where several are packed into a
            row (positions then restart with each); default one.

    Returns:
        bool [B, 1, A + L, A + L].

    Source:
        BD3-LM (arXiv 2503.09573), vectorised training.
    """
    noisy = noisy_positions.div(block_length, rounding_mode="floor")
    clean = clean_positions.div(block_length, rounding_mode="floor")
    upper = torch.cat([noisy[:, :, None] == noisy[:, None, :], noisy[:, :, None] > clean[:, None, :]], 2)
    never = noisy.new_zeros(clean.shape[0], clean.shape[1], noisy.shape[1], dtype=torch.bool)
    lower = torch.cat([never, clean[:, :, None] >= clean[:, None, :]], 2)
    allowed = torch.cat([upper, lower], 1)
    if noisy_documents is not None and clean_documents is not None:
        allowed = allowed & document_mask(torch.cat([noisy_documents, clean_documents], 1))[:, 0]
    if noisy_real is not None or clean_real is not None:
        noisy_keys = torch.ones_like(noisy, dtype=torch.bool) if noisy_real is None else noisy_real != 0
        clean_keys = torch.ones_like(clean, dtype=torch.bool) if clean_real is None else clean_real != 0
        itself = torch.eye(allowed.shape[1], dtype=torch.bool, device=noisy.device)
        allowed = (allowed & torch.cat([noisy_keys, clean_keys], 1)[:, None, :]) | itself
    return allowed[:, None]
