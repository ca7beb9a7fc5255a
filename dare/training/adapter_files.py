"""Read LoRA adapters in peft's format: those written here, and those trained on a family's released code."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.facts import Overrides
from dare_bench.dare.families.places import (
    ADAPTER,
    ADAPTER_CONFIG,
    BadCheckpoint,
    WeightsNotHere,
    adapter_base,
    official_config,
    read_object,
)
from dare_bench.dare.training.adapter_places import Place, official_modules, our_modules, required
from dare_bench.dare.training.adapters import PREFIX, fold, freeze_base, lora_layers, target
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

#: Settings of peft that are honoured, or without effect on a finished adapter. Any other that is set is refused.
_KNOWN = {
    "peft_type", "task_type", "base_model_name_or_path", "revision", "peft_version", "inference_mode",
    "auto_mapping", "r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "target_parameters",
    "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "use_rslora", "init_lora_weights",
    "megatron_config", "megatron_core", "runtime_config", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
    "qalora_group_size", "ensure_weight_tying",
}  # fmt: skip
#: Initialisations that leave the base as it is.
_PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class Update:
    """One adapted matrix of a file.

    Attributes:
        module: as the file names it.
        a, b: [r, in] and [out, r].
        scale: of their product.
        places: what of the network it changes.
    """

    module: str
    a: Tensor
    b: Tensor
    scale: float
    places: tuple[Place, ...]


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
        WeightsNotHere: if the base is not here.
        BadCheckpoint: if the adapter is damaged, of a kind that is not supported, or does not fit its base.
    """
    from dare_bench.dare.families.loading import load

    settings = _settings(folder)
    base, revision = adapter_base(folder)
    tensors = _tensors(folder)
    try:
        official_config(folder)
        lm = load(base, family=family, dtype=dtype, device=device, revision=revision, overrides=overrides)
    except WeightsNotHere as error:
        raise WeightsNotHere(f"{folder}: the base of this adapter: {error}") from error
    own = (settings.get("auto_mapping") or {}).get("family", lm.family.name)
    if own != lm.family.name:
        raise BadCheckpoint(f"{folder}: adapter of family {own!r}, its base {base!r} is {lm.family.name!r}")
    updates = _updates(folder, settings, tensors, lm)
    if merged:
        weights = dict(lm.model.named_parameters())
        for update in updates:
            for place in update.places:
                fold(place.of(weights), update.a.to(lm.device), place.rows_of(update.b).to(lm.device), update.scale)
    else:
        _inject(folder, settings, updates, lm)
    return lm


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / ADAPTER_CONFIG
    settings = read_object(path)
    advice = "merge it with the code it was trained with (peft: merge_and_unload) and give the merged folder instead"
    if settings.get("peft_type") != "LORA":
        raise BadCheckpoint(f"{path}: peft_type is {settings.get('peft_type')!r}, supported: 'LORA'; {advice}")
    off = (None, False, 0, "", [], {}, "none")
    strange = [name for name in sorted(settings) if name not in _KNOWN and settings[name] not in off]
    if settings.get("init_lora_weights", True) not in _PLAIN_STARTS:  # the others change the base, too
        strange.append("init_lora_weights")
    if strange:
        shown = ", ".join(f"{name} = {settings[name]!r}" for name in strange)
        raise BadCheckpoint(f"{path}: settings that are not supported: {shown}; {advice}")
    kinds: dict[str, tuple[type, ...]] = {
        "r": (int,),
        "lora_alpha": (int, float),
        "lora_dropout": (int, float, type(None)),
        "use_rslora": (bool, type(None)),
        "rank_pattern": (dict, type(None)),
        "alpha_pattern": (dict, type(None)),
        "auto_mapping": (dict, type(None)),
        "target_modules": (str, list, type(None)),
        "target_parameters": (list, type(None)),
    }
    for name, allowed in kinds.items():
        value = settings.get(name)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed) or value == [None]:
            expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in allowed)
            raise BadCheckpoint(f"{path}: {name} is {value!r}, expected {expected}")
    if settings["r"] < 1:
        raise BadCheckpoint(f"{path}: r is {settings['r']}, expected at least 1")
    return settings


def _tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / ADAPTER
    if not path.is_file():
        pickled = sorted(found.name for pattern in ("*.bin", "*.pt", "*.pth") for found in folder.glob(pattern))
        hint = (
            f" Pickled weights ({', '.join(pickled)}) are never read: convert them to safetensors." if pickled else ""
        )
        raise BadCheckpoint(f"{folder}: missing weight file {ADAPTER}.{hint}")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise BadCheckpoint(f"{path}: damaged or not a safetensors file ({error})") from error
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise BadCheckpoint(
                f"{path}: {name} holds {tensor.dtype} values or NaN; the adapter is damaged or diverged"
            )
    return tensors


def _pairs(folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Module -> (A, B)."""
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(.+)\.lora_(A|B)\.weight", name.removeprefix(PREFIX))
        if found is None:
            raise BadCheckpoint(
                f"{folder / ADAPTER}: {name} is no LoRA matrix (PREFIX.lora_A.weight or PREFIX.lora_B.weight); adapters "
                "with other tensors (DoRA, saved modules, embeddings, biases) are not supported: merge them with peft "
                "(merge_and_unload) and give the merged folder instead"
            )
        halves.setdefault(found[1], {})[found[2]] = tensor
    for module, held in halves.items():
        for half in "AB":
            if half not in held:
                raise BadCheckpoint(f"{folder / ADAPTER}: {PREFIX}{module}.lora_{half}.weight is missing")
    return {module: (held["A"], held["B"]) for module, held in halves.items()}


def _updates(folder: Path, settings: Mapping[str, Any], tensors: Mapping[str, Tensor], lm: DiffusionLM) -> list[Update]:
    pairs = _pairs(folder, tensors)
    known = our_modules(lm)
    if not all(module in known for module in pairs):
        named = official_modules(lm)
        # One set of names per file; the wrong one is judged by the names that fit it better.
        known = max((known, named), key=lambda names: sum(module in names for module in pairs))
    needed = required(settings, list(pairs), known)
    extra, missing = sorted(set(pairs) - set(known)), sorted(needed - set(pairs))
    if extra or missing or not pairs:
        raise BadCheckpoint(
            f"{folder}: the adapter has {len(tensors)} tensors, its base takes {2 * len(needed)}. "
            f"Missing modules: {_few(missing)}; not in the base: {_few(extra)}. "
            f"It belongs to another base than {settings['base_model_name_or_path']!r}, or is incomplete"
        )
    weights = dict(lm.model.named_parameters())
    found = []
    for module, (a, b) in pairs.items():
        rank = _of_pattern(settings.get("rank_pattern"), module, settings["r"])
        alpha = _of_pattern(settings.get("alpha_pattern"), module, settings["lora_alpha"])
        places = next((choice for choice in known[module] if _fits(choice, weights, a, b, rank)), None)
        if places is None:
            taken = [_shapes(choice, weights, rank) for choice in known[module]]
            raise BadCheckpoint(
                f"{folder}: {module}: lora_A is {tuple(a.shape)}, its base takes {' or '.join(str(t[0]) for t in taken)};"
                f" lora_B is {tuple(b.shape)}, its base takes {' or '.join(str(t[1]) for t in taken)} at rank {rank}; the "
                f"adapter belongs to another base than {settings['base_model_name_or_path']!r}"
            )
        scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        found.append(Update(module, a, b, scale, places))
    return found


def _of_pattern(patterns: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """Value of the first pattern that ends a module's name (peft's rule)."""
    for pattern, value in (patterns or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            return value
    return default


def _shapes(
    places: tuple[Place, ...], weights: Mapping[str, Tensor], rank: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    shapes = [place.of(weights).shape for place in places]
    width = rank * math.prod(shapes[0][:-2])
    return (width, shapes[0][-1]), (sum(shape[-2] for shape in shapes), width)


def _fits(places: tuple[Place, ...], weights: Mapping[str, Tensor], a: Tensor, b: Tensor, rank: int) -> bool:
    return (tuple(a.shape), tuple(b.shape)) == _shapes(places, weights, rank)


def _inject(folder: Path, settings: Mapping[str, Any], updates: list[Update], lm: DiffusionLM) -> None:
    """Adapters on exactly the modules of a file, each with its own rank and scale."""
    from peft import LoraConfig, inject_adapter_in_model

    parts, weights = {}, dict(lm.model.named_parameters())
    for update in updates:
        for place in update.places:
            if place.index:
                raise BadCheckpoint(
                    f"{folder}: {update.module} adapts one expert of a fused tensor, which cannot be kept live; load it "
                    "with adapter='merge'"
                )
            rank = update.a.shape[0] // math.prod(place.of(weights).shape[:-2])
            parts[place.name.removesuffix(".weight")] = (update.a, place.rows_of(update.b), rank, update.scale)
    fused = sorted(name for name in parts if name in weights)
    config = LoraConfig(
        r=settings["r"],
        lora_dropout=settings.get("lora_dropout") or 0.0,
        target_modules=sorted(set(parts) - set(fused)),
        target_parameters=fused or None,
        rank_pattern={name: rank for name, (_, _, rank, _) in parts.items() if rank != settings["r"]},
        bias="none",
    )
    try:
        inject_adapter_in_model(config, lm.model)
    except ValueError as error:
        raise BadCheckpoint(
            f"{folder}: the adapter cannot be kept live ({error}); load it with adapter='merge'"
        ) from error
    with torch.no_grad():
        for name, layer in lora_layers(lm.model):
            a, b, _, layer.scaling["default"] = parts[target(name, layer)]
            layer.lora_A["default"].weight.copy_(a)
            layer.lora_B["default"].weight.copy_(b)
    freeze_base(lm)


def _few(names: list[str]) -> str:
    return "none" if not names else ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
