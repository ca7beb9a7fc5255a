"""What a mistake costs: each detail of a family, done wrongly, is seen in the recorded logits.

The tests of parity mean something only because every mistake here moves a logit by more than 0.5, 5000 times the limit.
"""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.facts import Overrides
from dare_bench.dare.families.loading import load
from safetensors.torch import load_file
from torch import Tensor, nn

ALL = ("llada", "llada_moe", "dream", "sdar", "sdar_moe", "llada2_moe")
DENSE, MIXTURES = ("llada", "dream", "sdar"), ("llada_moe", "sdar_moe", "llada2_moe")
FULL, BLOCKS = ("llada", "llada_moe", "dream"), ("sdar", "sdar_moe", "llada2_moe")
SEEN = 0.5


class Recorded:
    """A folder of recorded values with a model of its own, to be spoiled."""

    def __init__(self, folder: Path) -> None:
        self.lm: DiffusionLM = load(folder, device="cpu", overrides=Overrides(block_length=4))
        self.given = load_file(folder / "inputs.safetensors")
        self.wanted = load_file(folder / "expected.safetensors")

    def error(self, name: str = "logits_full", *, ids: str = "input_ids", **options: Any) -> float:
        """Largest difference from recorded logits, at real positions."""
        options = {"mask": "full", "aligned": False, **options}
        found = self.lm.logits(self.given[ids], **options)
        difference = (found - self.wanted[name]).abs()
        side = next((side for side in ("leftpad", "rightpad") if side in name), None)
        return float((difference if side is None else difference[self.given[f"attention_mask_{side}"].bool()]).max())


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def recorded(reference) -> Callable[[str], Recorded]:
    def read(family: str) -> Recorded:
        case = Recorded(reference / "families" / family)
        assert case.error() < 1e-4  # right before it is made wrong
        return case

    return read


def layers(lm: DiffusionLM) -> list[Any]:
    return list(lm.model.model.layers)


def gates(lm: DiffusionLM) -> list[Any]:
    return [layer.mlp.gate for layer in layers(lm) if hasattr(layer.mlp, "gate")]


# What is spoiled in the weights and modules, and for whom


def drop_qk_norm(lm: DiffusionLM) -> None:
    for layer in layers(lm):
        layer.self_attn.q_norm = layer.self_attn.k_norm = nn.Identity()


def drop_qkv_bias(lm: DiffusionLM) -> None:
    for layer in layers(lm):
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(layer.self_attn, name).bias.zero_()


def swap_gate_and_up(lm: DiffusionLM) -> None:
    for layer in layers(lm):
        if hasattr(layer.mlp, "experts"):
            fused = layer.mlp.experts.gate_up_proj
            gate, up = fused.clone().chunk(2, 1)
            fused.copy_(torch.cat([up, gate], 1))
        else:
            layer.mlp.gate_proj, layer.mlp.up_proj = layer.mlp.up_proj, layer.mlp.gate_proj


def toggle_norm_topk(lm: DiffusionLM) -> None:
    for gate in gates(lm):
        gate.norm_topk_prob = not gate.norm_topk_prob


def drop_scaling(lm: DiffusionLM) -> None:
    for gate in gates(lm):
        assert gate.routed_scaling_factor == 2.5
        gate.routed_scaling_factor = 1.0


def drop_expert_bias(lm: DiffusionLM) -> None:
    for gate in gates(lm):
        gate.e_score_correction_bias.zero_()


def drop_group_limit(lm: DiffusionLM) -> None:
    for gate in gates(lm):
        assert gate.topk_group < gate.num_group
        gate.topk_group = gate.num_group


def drop_shared_expert(lm: DiffusionLM) -> None:
    for layer in layers(lm):
        if hasattr(layer.mlp, "shared_experts"):
            layer.mlp.shared_experts.down_proj.weight.zero_()


def keep_bias_in_weights(lm: DiffusionLM) -> None:
    def biased(gate: Any, args: tuple[Any, ...], output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        logits, _, chosen = output
        weights = (logits.sigmoid() + gate.e_score_correction_bias).gather(1, chosen)
        return logits, weights / weights.sum(-1, keepdim=True) * gate.routed_scaling_factor, chosen

    for gate in gates(lm):
        gate.register_forward_hook(biased)


def one_expert_less(lm: DiffusionLM) -> None:
    for gate in gates(lm):
        gate.top_k -= 1


MUTATIONS: dict[Callable[[DiffusionLM], None], tuple[str, ...]] = {
    drop_qk_norm: ("llada_moe", "sdar", "sdar_moe", "llada2_moe"),
    drop_qkv_bias: ("dream",),
    swap_gate_and_up: ALL,
    toggle_norm_topk: MIXTURES,
    one_expert_less: MIXTURES,
    drop_scaling: ("llada2_moe",),
    drop_expert_bias: ("llada2_moe",),
    drop_group_limit: ("llada2_moe",),
    drop_shared_expert: ("llada2_moe",),
    keep_bias_in_weights: ("llada2_moe",),
}
SPOILED = [(family, mutation) for mutation, families in MUTATIONS.items() for family in families]


@pytest.mark.parametrize(("family", "mutation"), SPOILED, ids=[f"{family}-{m.__name__}" for family, m in SPOILED])
def test_a_wrong_detail_is_seen(recorded, family, mutation):
    case = recorded(family)
    mutation(case.lm)
    assert case.error() > SEEN


@pytest.mark.parametrize("family", ALL)
def test_interleaved_rotation_is_seen(recorded, family, monkeypatch):
    case = recorded(family)
    module = importlib.import_module(type(case.lm.model).__module__)
    right = module.apply_rotary_pos_emb

    def interleaved(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        # Pairs (2j, 2j+1) instead of (j, j+r/2): the same rotation of reordered channels, and attention sees no order.
        width = cos.shape[-1]
        order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2), torch.arange(width, q.shape[-1])])
        return right(q[..., order], k[..., order], cos, sin, **options)

    monkeypatch.setattr(module, "apply_rotary_pos_emb", interleaved)
    assert case.error() > SEEN


def changed(reference: Path, family: str, folder: Path, **fields: Any) -> Recorded:
    """A family's recorded folder with other fields in config.json."""
    for name in ("model", "inputs", "expected"):
        shutil.copy(reference / "families" / family / f"{name}.safetensors", folder)
    config = json.loads((reference / "families" / family / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return Recorded(folder)


@pytest.mark.parametrize("family", ALL)
def test_another_rope_base_is_seen(reference, family, tmp_path):
    assert changed(reference, family, tmp_path, rope_theta=50.0).error() > SEEN


def test_rotation_of_the_whole_head_is_seen(reference, tmp_path):
    assert changed(reference, "llada2_moe", tmp_path, partial_rotary_factor=1.0, rotary_dim=24).error() > SEEN


# Masks and alignment


@pytest.mark.parametrize("family", ALL)
def test_a_causal_mask_is_seen(recorded, family):
    case = recorded(family)
    assert case.error(mask="causal") > SEEN
    if family in BLOCKS:
        assert case.error("logits_block_causal", mask="causal") > SEEN


@pytest.mark.parametrize("family", BLOCKS)
def test_full_attention_or_another_block_length_is_seen(recorded, family):
    case = recorded(family)
    assert case.error("logits_block_causal", mask="full") > SEEN
    assert case.error("logits_block_causal", mask="block_causal", block_length=8) > SEEN


@pytest.mark.parametrize("family", FULL)
@pytest.mark.parametrize("side", ["leftpad", "rightpad"])
def test_an_ignored_padding_mask_is_seen(recorded, family, side):
    case = recorded(family)
    assert case.error(f"logits_{side}", ids=f"input_ids_{side}") > SEEN
    assert (
        case.error(f"logits_{side}", ids=f"input_ids_{side}", attention_mask=case.given[f"attention_mask_{side}"])
        < 1e-4
    )


@pytest.mark.parametrize("family", BLOCKS)
def test_blocks_counted_from_the_padding_are_seen(recorded, family):
    case = recorded(family)
    name, ids = "logits_leftpad_block_causal", "input_ids_leftpad"
    real = case.given["attention_mask_leftpad"]
    places = torch.arange(16).expand(2, -1)
    wrong = (places[:, :, None] // 4 >= places[:, None, :] // 4) & real[:, None, :].bool()
    assert case.error(name, ids=ids, mask=(wrong | torch.eye(16, dtype=torch.bool))[:, None]) > SEEN
    assert case.error(name, ids=ids, mask="block_causal", attention_mask=real) < 1e-4


def test_an_unshifted_dream_is_seen(recorded):
    case = recorded("dream")
    assert case.error("logits_full_aligned", aligned=True) < 1e-4
    assert case.error("logits_full_aligned", aligned=False) > SEEN
    assert case.error("logits_full", aligned=True) > SEEN
