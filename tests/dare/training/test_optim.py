"""Schedules, which parameter goes to which optimiser, and optimiser state without pickle."""

from __future__ import annotations

import math

import pytest
import torch
from dare_bench.dare.training import adapters, optim
from dare_bench.dare.training.config import LoraConfig, TrainConfig


class TestSchedule:
    def factors(self, **options):
        config = TrainConfig(steps=10, **options)
        return [optim.lr_factor(step, config) for step in range(10)]

    def test_constant(self):
        assert self.factors() == [1.0] * 10

    def test_warm_up_is_linear_and_ends_at_the_peak(self):
        assert self.factors(warmup_steps=4)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]

    def test_linear(self):
        assert self.factors(schedule="linear") == pytest.approx([1 - step / 10 for step in range(10)])

    def test_cosine(self):
        found = self.factors(schedule="cosine")
        assert found == pytest.approx([0.5 * (1 + math.cos(math.pi * step / 10)) for step in range(10)])
        assert found == sorted(found, reverse=True)

    def test_wsd_decays_over_the_last_share(self):
        assert self.factors(schedule="wsd", decay_ratio=0.4) == pytest.approx([1] * 7 + [0.75, 0.5, 0.25])
        assert self.factors(schedule="wsd", decay_ratio=0.0) == [1.0] * 10

    @pytest.mark.parametrize("schedule", optim.SCHEDULES)
    def test_stays_within_zero_and_one(self, schedule):
        config = TrainConfig(steps=7, schedule=schedule, warmup_steps=3)
        assert all(0 <= optim.lr_factor(step, config) <= 1 for step in range(12))

    def test_unknown(self):
        with pytest.raises(ValueError, match=r"schedule: 'exp'; allowed: constant, linear, cosine, wsd"):
            optim.lr_factor(0, TrainConfig(schedule="exp"))

    def test_set_lr_scales_each_optimiser_s_own_peak(self, tiny):
        config = TrainConfig(steps=10, lr=1e-3, muon_lr=2e-2, optimizer="muon", schedule="linear")
        optimizers = optim.build(tiny("sdar", text=False).model, config)
        assert optim.set_lr(optimizers, 5, config) == pytest.approx(5e-4)
        assert optimizers["adamw"].param_groups[0]["lr"] == pytest.approx(5e-4)
        assert optimizers["muon"].param_groups[0]["lr"] == pytest.approx(1e-2)


class TestBuild:
    def test_adamw_takes_everything(self, tiny):
        model = tiny("llada", text=False).model
        found = optim.build(model, TrainConfig(betas=(0.8, 0.9), weight_decay=0.3))
        (group,) = found["adamw"].param_groups
        assert set(found) == {"adamw"}
        assert group["names"] == [name for name, _ in model.named_parameters()]
        assert group["betas"] == (0.8, 0.9)
        assert group["weight_decay"] == 0.3

    @pytest.mark.parametrize("family", ["llada", "sdar"])
    def test_muon_takes_matrices_inside_layers_only(self, tiny, family):
        model = tiny(family, text=False).model
        found = optim.build(model, TrainConfig(optimizer="muon"))
        muon, rest = (set(found[kind].param_groups[0]["names"]) for kind in ("muon", "adamw"))
        assert all(".layers." in name and "norm" not in name for name in muon)
        assert len(muon) == 2 * 7
        assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= rest
        assert muon | rest == {name for name, _ in model.named_parameters()}
        assert not muon & rest

    def test_adapters(self, tiny):
        lm = tiny("sdar", text=False)
        adapters.inject(lm, LoraConfig(r=2), seed=0)
        names = set(optim.trainable(lm.model))
        assert len(names) == 2 * 2 * 7
        assert all("lora_" in name for name in names)
        assert set(optim.build(lm.model, TrainConfig(optimizer="muon"))) == {"muon"}


class TestState:
    @pytest.mark.parametrize("kind", ["adamw", "muon"])
    def test_round_trip_is_exact(self, tiny, kind):
        config = TrainConfig(optimizer=kind, lr=1e-2, steps=9)

        def start():
            model = tiny("sdar", text=False).model
            return model, optim.build(model, config)

        def step(model, optimizers, seed):
            generator = torch.Generator().manual_seed(seed)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            for optimizer in optimizers.values():
                optimizer.step()

        model, optimizers = start()
        for seed in range(3):
            step(model, optimizers, seed)
        tensors = {name: value.clone() for name, value in optim.state_tensors(optimizers).items()}
        assert all(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in tensors.values())
        other, fresh = start()
        other.load_state_dict(model.state_dict())
        optim.load_state_tensors(fresh, tensors)
        again = optim.state_tensors(fresh)
        assert set(again) == set(tensors)
        assert all(torch.equal(again[name], tensors[name]) for name in tensors)
        step(model, optimizers, 9)
        step(other, fresh, 9)
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(one, two)

    def test_state_of_another_model_is_refused(self, tiny):
        optimizers = optim.build(tiny("llada", text=False).model, TrainConfig())
        with pytest.raises(ValueError, match=r"unknown parameters: adamw/model\.other/step; delete the state folder"):
            optim.load_state_tensors(optimizers, {"adamw/model.other/step": torch.tensor(1.0)})
