"""A base in few bits under adapters: what is replaced, what learns, and what is refused."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from dare_bench.dare.algorithms.sft import SFT
from dare_bench.dare.training import adapters, quantised
from dare_bench.dare.training.config import LoraConfig, TrainConfig

needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed (extra `quantized`)"
)


def test_unknown_kinds_and_a_missing_library_are_named(tiny, monkeypatch):
    with pytest.raises(ValueError, match="nf4, int8"):
        quantised.quantise(tiny("llada", text=False), "int3", compute=torch.float32)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"dare-bench\[quantized\]"):
        quantised.quantise(tiny("llada", text=False), "nf4", compute=torch.float32)


@needs_bitsandbytes
@pytest.mark.parametrize("family", ["llada", "sdar"])
@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_layers_are_replaced_and_stay_near(tiny, family, kind):
    lm, plain = tiny(family, text=False, width=64), tiny(family, text=False, width=64)
    names = quantised.quantise(lm, kind, compute=torch.float32)
    assert names == [name for name, module in plain.model.named_modules()
                     if isinstance(module, torch.nn.Linear) and ".layers." in name]  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for name in names:
        held, exact = (each.model.get_submodule(name) for each in (lm, plain))
        x = torch.randn(16, exact.in_features, generator=generator)
        with torch.no_grad():
            error = float((held(x) - exact(x)).norm() / exact(x).norm())
        assert 0 < error < (0.25 if kind == "nf4" else 0.03)
    assert torch.isfinite(lm.logits(torch.randint(0, 60, (2, 9), generator=generator))).all()


@needs_bitsandbytes
def test_training_moves_adapters_only_and_merging_is_refused(tiny, run):
    lm = tiny("llada", width=64)
    peft = LoraConfig(r=4, quantize="nf4")
    done = run(lm, SFT(), TrainConfig(steps=12, batch_size=6, lr=1e-2, peft=peft), base="package:elsewhere")
    losses = [done.points[step]["nll_masked"] for step in sorted(done.points)]
    assert sum(losses[-4:]) < sum(losses[:4])
    assert {name for name, each in lm.model.named_parameters() if each.requires_grad} == {
        name for name, _ in lm.model.named_parameters() if "lora_" in name
    }
    with pytest.raises(ValueError, match="quantised"):
        adapters.merge(lm)
