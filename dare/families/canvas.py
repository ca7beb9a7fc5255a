"""Sizes of DiffusionGemma: layers of two widths, experts beside a dense MLP, a vision tower. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from dare_bench.dare.families.dims import Dims


@dataclass(frozen=True)
class Layer:
    """Attention of one layer: full layers have wider heads, fewer keys, and values that are their keys."""

    sliding: bool
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class CanvasDims(Dims):
    """Sizes of encoder and decoder (one set of weights), the decoder's self-conditioning, and the vision tower.

    Every layer has a dense MLP beside its experts: in `Experts` it is the shared one.

    Attributes:
        attention: one entry per layer; `kv_heads` and `head_dim` are those of the sliding layers.
        window: keys that a sliding layer sees, the query's own included.
        vision: weights of the vision tower and its projection; text never passes them.
    """

    attention: tuple[Layer, ...] = ()
    window: int = 0
    vision: int = 0

    def attention_of(self, layer: Layer) -> int:
        """Weights of the attention maps of a layer."""
        maps = 2 * self.heads + (2 if layer.sliding else 1) * layer.kv_heads
        return self.hidden * layer.head_dim * maps

    @property
    def attention_weights(self) -> int:
        """Weights of the attention maps of the largest layer."""
        return max(self.attention_of(layer) for layer in self.attention)

    def _layers(self, experts_used: int) -> int:
        return sum(self.attention_of(layer) for layer in self.attention) + self._mlp_weights(experts_used)

    def _rest(self) -> int:
        norms = sum(7 * self.hidden + 2 * layer.head_dim for layer in self.attention)
        router = self.layers * (self.hidden + self.experts.count)  # scales of inputs and experts
        table_and_norms = self.vocab * self.hidden + 2 * self.hidden
        return norms + router + table_and_norms + self.self_conditioning

    @property
    def self_conditioning(self) -> int:
        """Weights of the MLP through which the decoder reads its previous prediction."""
        return 3 * self.hidden * self.mlp

    @property
    def linear(self) -> int:
        """Weights of the linear maps of all layers that one token passes."""
        return self._layers(self.experts.per_token)

    @property
    def parameters(self) -> int:
        """All weights, each once; the scalars of the layers are buffers and not counted."""
        return self._layers(self.experts.count) + self._rest() + self.vision

    @property
    def kv_values_per_token(self) -> int:
        """Cached entries per token while it is inside the window; behind it only full layers keep theirs."""
        return sum(2 * layer.kv_heads * layer.head_dim for layer in self.attention)

    def lora_parameters(self, r: int, *, experts: bool = False) -> int:
        """Adapter weights of rank `r` on q, k, v, o of every layer; the family is not trained, so never on experts."""
        total = 0
        for layer in self.attention:
            q, kv = self.heads * layer.head_dim, layer.kv_heads * layer.head_dim
            total += r * (2 * (self.hidden + q) + (2 if layer.sliding else 1) * (self.hidden + kv))
        return total
