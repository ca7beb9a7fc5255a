"""LoRA through peft, on any algorithm: adapters are injected into the network and the base is frozen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.facts import Overrides
from dare_bench.dare.randomness import stream_seed
from dare_bench.dare.training.config import LoraConfig
from safetensors.torch import load_file, save_file
from torch import nn

ADAPTER = "adapter_model.safetensors"


def inject(lm: DiffusionLM, config: LoraConfig, *, seed: int) -> list[str]:
    """Add adapters to the family's target modules and freeze everything else.

    Args:
        lm: changed in place; equals the base exactly until the first step (B is zero).
        config: rank, alpha, dropout.
        seed: of the A matrices.

    Returns:
        Names of the adapted modules.

    Raises:
        ValueError: if the adapted modules are not exactly the family's targets.

    Source:
        arXiv 2106.09685; peft.
    """
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model

    pattern = re.compile(lm.family.lora_targets)
    wanted = sorted(name for name, module in lm.model.named_modules() if pattern.fullmatch(name))
    settings = PeftConfig(
        r=config.r,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=lm.family.lora_targets,
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "lora"))
        inject_adapter_in_model(settings, lm.model)
    adapted = sorted(name for name, _ in _lora_layers(lm.model))
    if adapted != wanted:
        raise ValueError(f"{lm.family.name}: adapted {len(adapted)} modules, the family has {len(wanted)} targets")
    for name, parameter in lm.model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return adapted


def _lora_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    from peft.tuners.lora import LoraLayer

    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


@contextmanager
def adapters_off(lm: DiffusionLM) -> Iterator[None]:
    """Within the block the model is its base, bit for bit (the reference policy of adapted training)."""
    layers = [module for _, module in _lora_layers(lm.model)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for name, parameter in lm.model.named_parameters():
            parameter.requires_grad_("lora_" in name)


def save_adapter(lm: DiffusionLM, folder: Path, config: LoraConfig, base: str) -> None:
    """Write adapter weights and where its base is.

    Args:
        lm: adapted model.
        folder: created if needed.
        config: as injected.
        base: registry name, hub id or folder of the base checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: p.detach().cpu().contiguous() for name, p in lm.model.named_parameters() if "lora_" in name}
    save_file(weights, folder / ADAPTER, metadata={"format": "pt"})
    described = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": config.r,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": lm.family.lora_targets,
        "bias": "none",
        "family": lm.family.name,
    }
    (folder / "adapter_config.json").write_text(
        json.dumps(described, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )


def merge(lm: DiffusionLM) -> DiffusionLM:
    """Fold the adapters into the base weights (in float32, cast once) and remove them."""
    for name, layer in list(_lora_layers(lm.model)):
        base = layer.get_base_layer()
        with torch.no_grad():
            delta = sum(
                layer.scaling[key] * (layer.lora_B[key].weight.float() @ layer.lora_A[key].weight.float())
                for key in layer.lora_A
            )
            base.weight.copy_((base.weight.float() + delta).to(base.weight.dtype))
        parent = lm.model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], base)
    for parameter in lm.model.parameters():
        parameter.requires_grad_(True)
    return lm


def load_adapted(
    folder: Path,
    *,
    family: str | None,
    dtype: str | torch.dtype,
    device: str | torch.device,
    overrides: Overrides | None,
    merged: bool,
) -> DiffusionLM:
    """Load the base of an adapter folder and put the adapter on it.

    Args:
        folder: of the adapter.
        family, dtype, device, overrides: of the base, see `families.loading.load`.
        merged: fold the adapter into the weights; else keep it live.

    Raises:
        BadCheckpoint: if the adapter does not fit its base.
    """
    from dare_bench.dare.families.loading import BadCheckpoint, load

    described = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    base, revision = described["base_model_name_or_path"], described.get("revision")
    lm = load(base, family=family, dtype=dtype, device=device, revision=revision, overrides=overrides)
    if described.get("family", lm.family.name) != lm.family.name:
        raise BadCheckpoint(
            f"{folder}: adapter of family {described['family']!r}, its base "
            f"{described['base_model_name_or_path']!r} is {lm.family.name!r}"
        )
    config = LoraConfig(described["r"], described["lora_alpha"], described["lora_dropout"])
    inject(lm, config, seed=0)
    weights = load_file(folder / ADAPTER)
    own = {name: parameter for name, parameter in lm.model.named_parameters() if "lora_" in name}
    if set(weights) != set(own):
        raise BadCheckpoint(f"{folder}: the adapter has {len(weights)} tensors, its base takes {len(own)}")
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape:
            raise BadCheckpoint(
                f"{folder}: {name} is {tuple(tensor.shape)}, its base takes {tuple(own[name].shape)}; "
                f"the adapter belongs to another base than {described['base_model_name_or_path']!r}"
            )
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)
    return merge(lm) if merged else lm
