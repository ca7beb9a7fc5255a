"""Adapters: which modules, zero at the start, off = base, merged = live, saved and loaded."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from dare_bench.dare.families import loading
from dare_bench.dare.families.loading import BadCheckpoint
from dare_bench.dare.training import adapters
from dare_bench.dare.training.config import LoraConfig

IDS = torch.arange(12).view(2, 6) + 40
SEVEN = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.fixture(params=["llada", "sdar"])
def family(request):
    return request.param


@pytest.fixture
def base(tiny, family, tmp_path):
    """A stored base checkpoint."""
    return loading.save(tiny(family), tmp_path / "base")


def load(folder):
    return loading.load(folder, dtype="float32", device="cpu")


def move(lm):
    """Adapters as after training: B no longer zero."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in lm.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)


@torch.no_grad()
def logits(lm):
    return lm.logits(IDS)


def test_adapted_modules_are_the_family_s_targets(base):
    lm = load(base)
    names = adapters.inject(lm, LoraConfig(r=4), seed=0)
    assert len(names) == 2 * 7
    assert {name.rpartition(".")[2] for name in names} == SEVEN
    assert all(".layers." in name for name in names)
    trainable = {name for name, parameter in lm.model.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name for name in trainable)
    assert sum(p.numel() for p in lm.model.parameters() if p.requires_grad) == lm.dims.lora_parameters(4)


@pytest.mark.parametrize("pattern", [r"model\.layers\.\d+\.mlp", r"model\.h\.\d+\.c_attn"])
def test_targets_that_cannot_be_adapted_are_an_error(base, pattern):
    """A module that is no linear map, and a pattern of another architecture."""
    lm = load(base)
    lm.family = dataclasses.replace(lm.family, lora_targets=pattern)
    with pytest.raises(ValueError, match=r"(?i)target module"):
        adapters.inject(lm, LoraConfig(r=2), seed=0)


def test_equals_the_base_at_the_start(base):
    lm = load(base)
    before = logits(lm)
    adapters.inject(lm, LoraConfig(), seed=0)
    assert torch.equal(logits(lm), before)


def test_off_is_the_base_bit_for_bit_and_on_again_afterwards(base):
    lm = load(base)
    before = logits(lm)
    adapters.inject(lm, LoraConfig(r=4), seed=0)
    move(lm)
    live = logits(lm)
    assert (live - before).abs().max() > 0.01
    with adapters.adapters_off(lm):
        assert torch.equal(logits(lm), before)
    assert torch.equal(logits(lm), live)
    assert all(p.requires_grad == ("lora_" in name) for name, p in lm.model.named_parameters())


def test_off_is_left_also_by_an_error(base):
    lm = load(base)
    adapters.inject(lm, LoraConfig(r=4), seed=0)
    move(lm)
    live = logits(lm)
    with pytest.raises(KeyError), adapters.adapters_off(lm):
        raise KeyError
    assert torch.equal(logits(lm), live)


def test_merged_equals_live(base):
    lm = load(base)
    names = [name for name, _ in lm.model.named_parameters()]
    adapters.inject(lm, LoraConfig(r=4, alpha=32), seed=0)
    move(lm)
    live = logits(lm)
    merged = adapters.merge(lm)
    assert (logits(merged) - live).abs().max() < 1e-4
    assert [name for name, _ in merged.model.named_parameters()] == names
    assert all(parameter.requires_grad for parameter in merged.model.parameters())


def test_saved_and_loaded(base, tmp_path, family):
    lm = load(base)
    config = LoraConfig(r=4, alpha=16)
    adapters.inject(lm, config, seed=0)
    move(lm)
    adapters.save_adapter(lm, tmp_path / "adapter", config, str(base))
    live = logits(lm)
    again = load(tmp_path / "adapter")
    assert (logits(again) - live).abs().max() < 1e-4
    described = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == str(base)
    assert (described["r"], described["lora_alpha"], described["family"]) == (4, 16, family)
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_seed_decides_the_start_and_nothing_global_moves(base):
    def matrices(seed):
        lm = load(base)
        adapters.inject(lm, LoraConfig(r=4), seed=seed)
        return {name: p.detach() for name, p in lm.model.named_parameters() if "lora_A" in name}

    state = torch.get_rng_state()
    one, again, other = matrices(1), matrices(1), matrices(2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert all(not torch.equal(one[name], other[name]) for name in one)


class TestWrongAdapter:
    def adapter(self, tiny, family, folder, base, **sizes):
        other = tiny(family, **sizes)
        adapters.inject(other, LoraConfig(r=4), seed=0)
        adapters.save_adapter(other, folder, LoraConfig(r=4), str(base))
        return folder

    def test_of_a_deeper_model(self, tiny, family, base, tmp_path):
        folder = self.adapter(tiny, family, tmp_path / "deep", base, layers=3)
        with pytest.raises(BadCheckpoint, match="the adapter has 42 tensors, its base takes 28"):
            load(folder)

    def test_of_a_wider_model(self, tiny, family, base, tmp_path):
        folder = self.adapter(tiny, family, tmp_path / "wide", base, width=64)
        with pytest.raises(BadCheckpoint, match=r"is \(4, 128\), its base takes \(4, 64\); the adapter belongs to"):
            load(folder)

    def test_of_another_family_with_the_same_sizes(self, tiny, family, base, tmp_path):
        folder = self.adapter(tiny, family, tmp_path / "other", base)
        described = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(described | {"family": "dream"}))
        with pytest.raises(BadCheckpoint, match=f"adapter of family 'dream', its base .* is {family!r}"):
            load(folder)

    def test_without_its_base(self, tiny, family, tmp_path):
        folder = self.adapter(tiny, family, tmp_path / "lost", tmp_path / "nowhere")
        with pytest.raises(loading.WeightsNotHere, match="nowhere"):
            load(folder)
