"""A transformer of a few thousand weights behind the interface that rows are scored through."""

from __future__ import annotations

import torch
from dare_bench.kernels.masks import block_causal_mask, doubled_mask
from torch import Tensor, nn
from torch.nn import functional


class Layer(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, states: Tensor, allowed: Tensor | None) -> Tensor:
        count, length, width = states.shape
        parts = self.mixed(self.before(states)).view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, attn_mask=allowed)
        states = states + self.out(mixed.transpose(1, 2).reshape(count, length, width))
        return states + self.down(functional.gelu(self.up(self.behind(states))))


class Network(nn.Module):
    """Embeddings of tokens (the mask is one more) and places, layers, a head without the mask."""

    def __init__(self, vocabulary: int, length: int, layers: int, width: int = 32, inner: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary + 1, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, 4, inner) for _ in range(layers))
        self.norm, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.5)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def forward(self, ids: Tensor, places: Tensor, allowed: Tensor | None) -> Tensor:
        states = self.tokens(ids) + self.places(places.clamp(max=self.places.num_embeddings - 1))
        for layer in self.layers:
            states = layer(states, allowed)
        return self.norm(states)


class ToyLM:
    """The network as algorithms meet one.

    Args:
        vocabulary: tokens; the id behind them is the mask.
        length: of sequences.
        layers: of the network.
        block: tokens per block of a block family; 0 = full attention.
        shift: 1 = the state before a token scores it (Dream).
        seed: of the weights.
    """

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(
        self, vocabulary: int, length: int, layers: int, *, block: int = 0, shift: int = 0, seed: int = 0
    ) -> None:
        torch.manual_seed(seed)
        self.model = Network(vocabulary, length, layers)
        self.mask_token_id, self.block_length, self.shift = vocabulary, block, shift
        self.is_block_causal = block > 0

    def hidden(
        self,
        ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Aligned states [B, S, d], or [N, d] at `positions`."""
        places = torch.arange(ids.shape[1]).expand(ids.shape) if position_ids is None else position_ids
        allowed = block_causal_mask(places, self.block_length) if self.block_length else None
        if attention_mask is not None:
            keys = attention_mask[:, None, None, :].bool()
            allowed = keys.expand(-1, 1, ids.shape[1], -1) if allowed is None else allowed & keys
        states = self.model(ids, places, allowed)
        if self.shift:
            states = torch.cat([states[:, :1], states[:, :-1]], 1)
        return states if positions is None else states[positions]

    def doubled(
        self,
        noisy: Tensor,
        clean: Tensor,
        *,
        noisy_positions: Tensor,
        noisy_real: Tensor,
        clean_real: Tensor,
        positions: Tensor,
        block_length: int,
    ) -> Tensor:
        """States [N, d] of the noisy half at `positions`."""
        places = torch.arange(clean.shape[1]).expand(clean.shape)
        allowed = doubled_mask(noisy_positions, places, block_length, noisy_real=noisy_real, clean_real=clean_real)
        states = self.model(torch.cat([noisy, clean], 1), torch.cat([noisy_positions, places], 1), allowed)
        return states[:, : noisy.shape[1]][positions]

    def logits(self, ids: Tensor) -> Tensor:
        """Aligned logits [B, S, V]."""
        return self.model.lm_head(self.hidden(ids))
