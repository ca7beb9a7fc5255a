"""LoRA through peft, on any algorithm: adapters are injected into the network and the base is frozen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.facts import UnsupportedConfig
from dare_bench.dare.families.places import ADAPTER, ADAPTER_CONFIG, portable
from dare_bench.dare.randomness import stream_seed
from dare_bench.dare.training.config import LoraConfig
from dare_bench.dare.training.quantised import is_quantised
from safetensors.torch import save_file
from torch import Tensor, nn

#: What peft puts before the names of a network's tensors in an adapter file.
PREFIX = "base_model.model."
#: Expert tensors of the mixture networks: three-dimensional parameters, no modules.
EXPERT_PARAMETERS = ("mlp.experts.down_proj", "mlp.experts.gate_up_proj")


def inject(lm: DiffusionLM, config: LoraConfig, *, seed: int) -> list[str]:
    """Add adapters to the family's target modules and freeze everything else.

    Args:
        lm: changed in place; equals the base exactly until the first step (B is zero).
        config: rank, alpha, dropout, whether experts are adapted.
        seed: of the A matrices.

    Returns:
        Names of the adapted modules, and of adapted expert tensors.

    Raises:
        ValueError: if what is adapted is not exactly the family's targets.
        UnsupportedConfig: if experts are to be adapted where there are none, or with dropout.

    Source:
        arXiv 2106.09685; peft.
    """
    from peft import inject_adapter_in_model

    if config.experts and lm.dims.experts is None:
        raise UnsupportedConfig(f"{lm.family.name}: peft.experts is true and the network has no experts; leave it out")
    if config.experts and config.dropout:
        raise UnsupportedConfig(
            f"peft.dropout is {config.dropout} with peft.experts; adapted experts are computed as one weight, without "
            "dropout: set dropout to 0"
        )
    wanted = set(_matching(lm)) | {
        name for name, _ in lm.model.named_parameters() if config.experts and name.endswith(EXPERT_PARAMETERS)
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "lora"))
        inject_adapter_in_model(_settings(lm, config), lm.model)
    for name, parameter in lm.model.named_parameters():
        if "lora_" in name:  # peft makes them in the dtype of the base; what learns is kept in float32
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
    found = adapted(lm)
    if set(found) != wanted:
        raise ValueError(f"{lm.family.name}: adapted {len(found)} modules, the family has {len(wanted)} targets")
    freeze_base(lm)
    return found


def _matching(lm: DiffusionLM) -> list[str]:
    pattern = re.compile(lm.family.lora_targets)
    return sorted(name for name, _ in lm.model.named_modules() if pattern.fullmatch(name))


def _settings(lm: DiffusionLM, config: LoraConfig, targets: str | list[str] | None = None) -> Any:
    """peft's settings of an adapter."""
    from peft import LoraConfig as PeftConfig

    return PeftConfig(
        r=config.r,
        lora_alpha=config.alpha,  # type: ignore[arg-type]  # peft divides by the rank: any number does
        lora_dropout=config.dropout,
        target_modules=lm.family.lora_targets if targets is None else targets,
        target_parameters=list(EXPERT_PARAMETERS) if config.experts else None,
        bias="none",
    )


def lora_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """peft's layers by name; several expert tensors of a module are nested (``experts``, ``experts.base_layer``)."""
    from peft.tuners.lora import LoraLayer

    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


def adapted(lm: DiffusionLM) -> list[str]:
    """Names of adapted modules, and of adapted expert tensors, as in the network without adapters."""
    return sorted(target(name, layer) for name, layer in lora_layers(lm.model))


def target(name: str, layer: Any) -> str:
    """What a layer of peft's adapts, as named in the network without adapters."""
    parameter = getattr(layer, "parameter_name", None)  # of layers that adapt a tensor of the module they wrap
    return name if parameter is None else f"{name.replace('.base_layer', '')}.{parameter}"


def freeze_base(lm: DiffusionLM) -> None:
    """Only adapters learn."""
    for name, parameter in lm.model.named_parameters():
        parameter.requires_grad_("lora_" in name)


@contextmanager
def adapters_off(lm: DiffusionLM) -> Iterator[None]:
    """Within the block the model is its base, bit for bit (the reference policy of adapted training)."""
    layers = [module for _, module in lora_layers(lm.model)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        freeze_base(lm)


def save_adapter(lm: DiffusionLM, folder: Path, config: LoraConfig, base: str) -> None:
    """Write an adapter in peft's format: adapter_config.json and adapter_model.safetensors.

    Names are those of the transformers class that computes the family, so that peft reads the adapter for that class.

    Args:
        lm: adapted model.
        folder: created if needed.
        config: as injected.
        base: registry name, hub id or folder of the base checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        PREFIX + name.replace(".default.", "."): parameter.detach().cpu().contiguous()
        for name, parameter in lm.model.named_parameters()
        if "lora_" in name
    }
    save_file(weights, folder / ADAPTER, metadata={"format": "pt"})
    modules = [name for name in adapted(lm) if not name.endswith(EXPERT_PARAMETERS)]
    settings = _settings(lm, config, None if modules == _matching(lm) else modules)
    settings.base_model_name_or_path, settings.revision = portable(base)
    settings.inference_mode = True
    described = {name: sorted(value) if isinstance(value, set) else value for name, value in settings.to_dict().items()}
    # peft's place for the class whose names the file uses; it keeps what else stands there.
    network = lm.family.network(lm.config)
    described["auto_mapping"] = {
        "base_model_class": network.model_class,
        "parent_library": "transformers",
        "family": lm.family.name,
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def merge(lm: DiffusionLM) -> DiffusionLM:
    """Fold the adapters into the base weights (in float32 or better, cast once) and remove them.

    Raises:
        ValueError: the base is held in few bits; merge into the released weights.
    """
    layers = list(lora_layers(lm.model))
    for name, layer in layers:
        if is_quantised(layer.get_base_layer()):
            raise ValueError(
                f"{name}: the base is quantised; adapters are merged into unquantised weights: load the base and the "
                "saved adapter again"
            )
    for _, layer in layers:
        weight = getattr(layer.get_base_layer(), getattr(layer, "parameter_name", "weight"))
        for key in layer.lora_A:
            fold(weight, layer.lora_A[key].weight, layer.lora_B[key].weight, layer.scaling[key])
    for name, layer in layers:
        if not name.endswith(".base_layer"):  # nested ones go with the outermost
            lm.model.set_submodule(name, layer.get_base_layer())
    for parameter in lm.model.parameters():
        parameter.requires_grad_(True)
    return lm


@torch.no_grad()
def fold(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
    """``weight += scale * b @ a``, in float32 or better, cast once.

    Args:
        weight: [out, in], or [E, out, in] for a stack of experts; changed in place.
        a: [r, in], or [E * r, in], expert by expert.
        b: [out, r], or [out, r * E], rank by rank (peft's order).
        scale: of the update.
    """
    if weight.dim() == 2:
        kind = torch.promote_types(weight.dtype, torch.float32)
        weight.copy_(weight.to(kind) + scale * (b.to(kind) @ a.to(kind)))
        return
    count = weight.shape[0]
    of_expert, rows = a.reshape(count, -1, a.shape[-1]), b.reshape(b.shape[0], -1, count)
    for expert in range(count):
        fold(weight[expert], of_expert[expert], rows[..., expert], scale)
