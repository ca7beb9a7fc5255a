"""Algorithms by name: several entries of one name, chosen by the family."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from dare_bench.dare.algorithms import registry
from dare_bench.dare.algorithms.base import Needs
from dare_bench.dare.families.registry import UnknownName
from dare_bench.dare.training.config import TrainConfig


@dataclass(frozen=True)
class Nothing:
    pass


class First:
    """First."""

    needs = Needs()


class Second:
    """Second."""

    needs = Needs()


def test_the_family_chooses_the_entry():
    entries = registry.algorithms()["sft"]
    assert len(entries) >= 2
    assert registry.get("sft", "sdar") is entries[0] is registry.get("sft")
    assert registry.get("sft", "autoregressive").config_class.__name__ == "SFTAutoregressiveConfig"
    families = [family for entry in entries for family in entry.families]
    assert len(families) == len(set(families))


def test_unknown_names_and_families():
    with pytest.raises(UnknownName, match="Did you mean 'sft'"):
        registry.get("sftt")
    with pytest.raises(UnknownName, match=r"family of grpo 'sdar'.*autoregressive"):
        registry.get("grpo", "sdar")


def test_a_family_belongs_to_one_entry(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", {})
    registry.register("x", families={"a", "b"}, config=Nothing)(First)
    registry.register("x", families={"c"}, config=Nothing)(Second)
    registry.register("x", families={"a", "b"}, config=Nothing, version=2)(First)  # the same class again: replaced
    assert [entry.version for entry in registry._REGISTRY["x"]] == [1, 2]
    with pytest.raises(ValueError, match="'x' is registered twice for the family 'b'"):
        registry.register("x", families={"b", "c"}, config=Nothing)(Second)


def test_settings_of_the_shared_optimisation_are_checked():
    entry = registry.get("grpo", "autoregressive")
    settings = entry.config_class(group_size=4)
    assert entry.check(TrainConfig(batch_size=2, micro_batch_size=4), settings) == {}
    found = entry.check(TrainConfig(batch_size=2, micro_batch_size=3, optimizer="muon", pad_blocks=1), settings)
    assert sorted(found) == ["micro_batch_size", "optimizer", "pad_blocks"]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("sft", {"loss_type": "mse"}, "loss_type: 'mse'; allowed: nll, dft"),
        ("dpo", {"beta": 0.0}, "beta: 0.0; allowed: a number > 0"),
        ("dpo", {"label_smoothing": 0.5}, "label_smoothing: 0.5"),
        ("grpo", {"group_size": 1}, "group_size: 1; allowed: at least 2"),
        ("grpo", {"temperature": 0.0}, "temperature: 0.0"),
        ("grpo", {"scale_rewards": "all"}, "scale_rewards: 'all'; allowed: group, batch, none"),
    ],
)
def test_options_are_checked(name, options, said):
    with pytest.raises(ValueError, match=said):
        registry.get(name, "autoregressive").config_class(**options)


def test_presets_are_valid():
    for name in ("sft", "dpo", "grpo"):
        entry = registry.get(name, "autoregressive")
        for preset in {*entry.presets, *entry.train_presets}:
            settings = entry.config_class(**entry.presets.get(preset, {}))
            train = TrainConfig(**entry.train_presets.get(preset, {}))
            assert entry.check(train, settings) == {}
