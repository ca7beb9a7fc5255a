"""Sizes of a decoder: exact counts of weights, cached values and adapter weights. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Experts:
    """Mixture-of-experts layers.

    Attributes:
        count: routed experts per layer.
        per_token: experts a token uses.
        width: MLP width of one expert.
        shared: MLP width of the shared expert, 0 = none.
        dense_layers: indices of layers with a dense MLP instead.
    """

    count: int
    per_token: int
    width: int
    shared: int = 0
    dense_layers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Dims:
    """Sizes of a pre-norm decoder with gated MLPs.

    Attributes:
        layers, hidden, heads, kv_heads, head_dim: as named.
        mlp: width of the dense MLP.
        vocab: rows of the embedding, padding included.
        qk_norm: RMSNorm over the head dimension of queries and keys.
        qkv_bias: biases of the query, key and value maps.
        tied: the output head is the embedding.
        experts: of mixture-of-experts networks.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    qk_norm: bool = False
    qkv_bias: bool = False
    tied: bool = False
    experts: Experts | None = None

    @property
    def attention_weights(self) -> int:
        """Weights of the four attention maps of one layer, biases left out."""
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return 0 if self.experts is None else self.layers - len(self.experts.dense_layers)

    def _mlp_weights(self, experts_used: int) -> int:
        """MLP weights of all layers, with so many routed experts counted per mixture layer; routers included."""
        dense = (self.layers - self.moe_layers) * 3 * self.hidden * self.mlp
        if self.experts is None:
            return dense
        one = 3 * self.hidden * (experts_used * self.experts.width + self.experts.shared)
        return dense + self.moe_layers * (one + self.hidden * self.experts.count)

    @property
    def linear(self) -> int:
        """Weights of the linear maps of all layers that one token passes (routed experts: those it uses)."""
        used = 0 if self.experts is None else self.experts.per_token
        return self.layers * self.attention_weights + self._mlp_weights(used)

    @property
    def mlp_width(self) -> int:
        """Widest MLP activation of a token: the dense width, or the experts it uses with the shared one."""
        if self.experts is None:
            return self.mlp
        used = self.experts.per_token * self.experts.width + self.experts.shared
        return max(used, self.mlp if self.experts.dense_layers else 0)

    def _rest(self) -> int:
        """Norms, biases, embedding and head."""
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        biases = self.head_dim * (self.heads + 2 * self.kv_heads) if self.qkv_bias else 0
        tables = 1 if self.tied else 2
        return self.layers * (norms + biases) + self.hidden + tables * self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, embedding and head included (a tied head once)."""
        count = 0 if self.experts is None else self.experts.count
        return self.layers * self.attention_weights + self._mlp_weights(count) + self._rest()

    @property
    def active(self) -> int:
        """Weights a token passes: of the routed experts those it uses; embedding and head counted."""
        return self.linear + self._rest()

    @property
    def largest_layer(self) -> int:
        """Weights of the largest unit that sharded training gathers at once: a layer, or the embedding."""
        mlp = 3 * self.hidden * self.mlp
        if self.experts is not None:
            routed = 3 * self.hidden * (self.experts.count * self.experts.width + self.experts.shared)
            mlp = max(mlp if self.experts.dense_layers else 0, routed + self.hidden * self.experts.count)
        return max(self.attention_weights + mlp, self.vocab * self.hidden)

    @property
    def kv_values_per_token(self) -> int:
        """Cached key and value entries per token, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def lora_parameters(self, r: int, *, experts: bool = False) -> int:
        """Adapter weights of rank `r`: q, k, v, o, and gate, up, down of networks without routed experts.

        Args:
            r: rank.
            experts: also a pair of matrices for either of the two tensors of every routed expert.
        """
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        widths = (self.hidden + q) * 2 + (self.hidden + kv) * 2
        if self.experts is None:
            widths += (self.hidden + self.mlp) * 3
        routed = 0
        if experts and self.experts is not None:
            one = (self.hidden + 2 * self.experts.width) + (self.experts.width + self.hidden)
            routed = self.moe_layers * self.experts.count * one
        return r * (self.layers * widths + routed)
