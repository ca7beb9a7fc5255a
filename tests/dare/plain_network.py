"""The networks again, as plainly as they can be written: one sequence, one query, one expert at a time, in float64.

No transformers, no batches, no masks, no cache class: what a token sees is a question asked about two places, and what is
stored is a dictionary. Used as the independent side of comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from dare_bench.dare.families.base import DiffusionLM
from torch import Tensor

Sees = Callable[[int, int], bool]
#: Per layer: place -> (key [kv, d], value [kv, d]).
Memory = list[dict[int, tuple[Tensor, Tensor]]]


def everything(query: int, key: int) -> bool:
    """Full attention."""
    return True


def blocks(length: int) -> Sees:
    """Block-causal attention."""
    return lambda query, key: query // length >= key // length


class PlainNetwork:
    """One model's weights, and its forward.

    Args:
        lm: whose weights are read.
    """

    def __init__(self, lm: DiffusionLM) -> None:
        self.weights = {name: tensor.double() for name, tensor in lm.model.state_dict().items()}
        self.config, self.sizes, self.family = lm.config, lm.dims, lm.family.name
        self.routes: list[tuple[int, Tensor, list[int]]] = []

    def forward(
        self, tokens: Sequence[int], sees: Sees, *, places: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Tensor:
        """Raw logits [n, V]: row i as the network gives it.

        Args:
            tokens: n ids.
            sees: whether a query place sees a key place.
            places: of the tokens; default 0..n-1.
            memory: keys and values by place; those of the fed places are overwritten.
        """
        places = list(range(len(tokens))) if places is None else list(places)
        memory = [{} for _ in range(self.sizes.layers)] if memory is None else memory
        self.routes = []
        states = self.weights["model.embed_tokens.weight"][list(tokens)]
        for layer in range(self.sizes.layers):
            name = f"model.layers.{layer}"
            normed = self._norm(states, f"{name}.input_layernorm")
            states = states + self._attention(normed, f"{name}.self_attn", places, sees, memory[layer])
            normed = self._norm(states, f"{name}.post_attention_layernorm")
            is_mixture = f"{name}.mlp.gate.weight" in self.weights
            rows = [self._experts(row, layer) if is_mixture else self._mlp(row, f"{name}.mlp") for row in normed]
            states = states + torch.stack(rows)
        return self._norm(states, "model.norm") @ self.weights["lm_head.weight"].T

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = (x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt()
        return self.weights[f"{name}.weight"] * x * scale

    def _linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def _rotate(self, x: Tensor, place: int) -> Tensor:
        """Rotate the pairs (j, j + r/2) of the first r channels of [heads, d]."""
        rotary = round(self.sizes.head_dim * self.config.get("partial_rotary_factor", 1))
        turned = x.clone()
        for j in range(rotary // 2):
            angle = torch.tensor(place * self.config["rope_theta"] ** (-2 * j / rotary), dtype=torch.float64)
            a, b = x[:, j], x[:, j + rotary // 2]
            turned[:, j] = a * angle.cos() - b * angle.sin()
            turned[:, j + rotary // 2] = b * angle.cos() + a * angle.sin()
        return turned

    def _attention(
        self, x: Tensor, name: str, places: list[int], sees: Sees, memory: dict[int, tuple[Tensor, Tensor]]
    ) -> Tensor:
        sizes, queries = self.sizes, []
        for row, place in zip(x, places, strict=True):
            query = self._linear(row, f"{name}.q_proj").reshape(sizes.heads, sizes.head_dim)
            key = self._linear(row, f"{name}.k_proj").reshape(sizes.kv_heads, sizes.head_dim)
            value = self._linear(row, f"{name}.v_proj").reshape(sizes.kv_heads, sizes.head_dim)
            if f"{name}.q_norm.weight" in self.weights:
                query, key = self._norm(query, f"{name}.q_norm"), self._norm(key, f"{name}.k_norm")
            queries.append(self._rotate(query, place))
            memory[place] = (self._rotate(key, place), value)
        out = []
        for query, place in zip(queries, places, strict=True):
            seen = [pair for key_place, pair in memory.items() if sees(place, key_place)]
            keys, values = (torch.stack([pair[side] for pair in seen]) for side in (0, 1))
            heads = []
            for head in range(sizes.heads):
                shared = head // (sizes.heads // sizes.kv_heads)
                weights = (keys[:, shared] @ query[head] * sizes.head_dim**-0.5).softmax(0)
                heads.append(weights @ values[:, shared])
            out.append(self._linear(torch.cat(heads), f"{name}.o_proj"))
        return torch.stack(out)

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        gate, up = self._linear(x, f"{name}.gate_proj"), self._linear(x, f"{name}.up_proj")
        return self._linear(torch.nn.functional.silu(gate) * up, f"{name}.down_proj")

    def _experts(self, x: Tensor, layer: int) -> Tensor:
        name = f"model.layers.{layer}.mlp"
        scores = self.weights[f"{name}.gate.weight"] @ x
        chosen = self._route(scores, name)
        self.routes.append((layer, scores, list(chosen)))
        total = torch.zeros_like(x)
        for expert, weight in chosen.items():
            gate, up = (self.weights[f"{name}.experts.gate_up_proj"][expert] @ x).chunk(2)
            hidden = torch.nn.functional.silu(gate) * up
            total += weight * (self.weights[f"{name}.experts.down_proj"][expert] @ hidden)
        return total + self._mlp(x, f"{name}.shared_experts") if self.family == "llada2_moe" else total

    def _route(self, scores: Tensor, name: str) -> dict[int, Any]:
        """Expert -> weight of one token."""
        count, config = self.config["num_experts_per_tok"], self.config
        if self.family != "llada2_moe":
            weights = scores.softmax(0)
            chosen = weights.argsort(descending=True)[:count].tolist()
            total = sum(weights[e] for e in chosen) if self.family == "sdar_moe" else 1.0
            return {e: weights[e] / total for e in chosen}
        weights = scores.sigmoid()
        ranked = weights + self.weights[f"{name}.gate.e_score_correction_bias"]
        size = len(ranked) // config["n_group"]
        best_two = {g: float(ranked[g * size : (g + 1) * size].topk(2).values.sum()) for g in range(config["n_group"])}
        groups = sorted(best_two, key=lambda group: -best_two[group])[: config["topk_group"]]
        open_experts = [e for e in range(len(ranked)) if e // size in groups]
        chosen = sorted(open_experts, key=lambda expert: -float(ranked[expert]))[:count]
        total = sum(weights[e] for e in chosen)
        return {e: weights[e] / total * config["routed_scaling_factor"] for e in chosen}
