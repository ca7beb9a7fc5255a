"""Load and save checkpoints with the official tensor names, without remote code and without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from dare_bench.dare.families import weights
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.facts import CAUSAL, Family, Overrides, UnsupportedConfig, check_ids
from dare_bench.dare.families.keys import Piece
from dare_bench.dare.families.places import (
    INDEX,
    SINGLE,
    BadCheckpoint,
    WeightsNotHere,
    is_adapter,
    read_config,
    resolve,
    shards,
)
from dare_bench.dare.families.registry import UnknownName, detect, families, get_family
from dare_bench.dare.families.tokens import read_tokenizer, settle, special_ids
from dare_bench.kernels import dispatch
from torch import nn


def build(
    family: Family, config: Mapping[str, Any], *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> nn.Module:
    """Build the family's transformers class for an official config, weights not set.

    Args:
        family: facts.
        config: official config.json.
        dtype: of the weights; rotary frequencies and expert biases stay float32 whatever it is.
        device: ``meta`` leaves parameters without memory; buffers are computed either way.
    """
    import transformers
    from accelerate import init_empty_weights

    network = family.network(config)
    try:
        class_config = getattr(transformers, network.config_class)(**network.arguments)
    except Exception as error:  # the library's checks of its own arguments, of many classes
        raise UnsupportedConfig(
            f"{family.name}: {network.config_class} refuses the config's values: {error}"
        ) from error
    # Padded and block-causal batches bring a boolean mask of their own: choose a path that takes one.
    runs_on = "cuda" if torch.cuda.is_available() else "cpu"
    class_config._attn_implementation = dispatch.choose(runs_on, dtype, mask="arbitrary").attn_implementation
    if dtype == torch.float64:
        class_config._experts_implementation = "eager"  # the grouped matrix product takes no float64
    cls = getattr(transformers, network.model_class)
    if family.attention != CAUSAL:
        class_config.is_causal = False
    if str(device) == "meta":
        with init_empty_weights(include_buffers=False):
            model = cls._from_config(class_config, dtype=dtype)
    else:
        with torch.device(device):
            model = cls._from_config(class_config, dtype=dtype)
    if family.attention != CAUSAL:
        for module in model.modules():
            if hasattr(module, "is_causal"):
                module.is_causal = False  # a None mask then means full attention, also inside sdpa
    return model.eval()


def load(
    source: str | Path,
    *,
    family: str | None = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    revision: str | None = None,
    overrides: Overrides | None = None,
    adapter: Literal["merge", "live"] = "merge",
) -> DiffusionLM:
    """Load a checkpoint.

    Memory: the network, plus a part of one weight file.

    Args:
        source: registry name, folder, or hub id (weights must be on this machine); a checkpoint or a LoRA adapter.
        family: overrides the detection from config.json.
        dtype: ``auto`` = as stored; else a torch dtype or its name.
        device: ``auto`` = CUDA when there is one, else CPU.
        revision: hub commit.
        overrides: facts that differ from the family's or the config's.
        adapter: fold a LoRA adapter into the weights, or keep it beside them (it can then be switched off).

    Returns:
        The model in evaluation mode.

    Raises:
        WeightsNotHere, BadCheckpoint, UnknownName, UnsupportedConfig: see there.
        ValueError: for an unknown dtype or adapter mode.
    """
    if adapter not in ("merge", "live"):
        raise ValueError(f"adapter: {adapter!r}; allowed: 'merge' or 'live'")
    folder = resolve(str(source), revision)
    if is_adapter(folder):
        from dare_bench.dare.training.adapter_files import load_adapted

        return load_adapted(
            folder, family=family, dtype=dtype, device=device, overrides=overrides, merged=adapter == "merge"
        )
    config = read_config(folder)
    facts = _family(folder, family, config)
    try:
        check_ids(config)
        facts.dims(config)
    except UnsupportedConfig as error:
        raise UnsupportedConfig(f"{folder / 'config.json'}: {error}") from error
    tokenizer = read_tokenizer(folder)
    config = special_ids(folder, facts, config, tokenizer)
    if overrides is not None:
        facts, config = overrides.apply(facts, config)
    settle(folder, facts, config, tokenizer, overrides)
    where = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    paths = shards(folder)
    stored = weights.headers(paths)
    main = weights.main_dtype(stored)
    try:
        model = build(facts, config, dtype=main if dtype == "auto" else to_dtype(dtype), device="meta")
        table = tensor_table(facts, config, model)
        is_tied = facts.dims(config).tied
    except UnsupportedConfig as error:
        raise UnsupportedConfig(f"{folder / 'config.json'}: {error}") from error
    # The released files of some tied models hold the embedding a second time, under the head's name.
    copies = {weights.HEAD} if is_tied and weights.HEAD in stored and weights.HEAD not in table else set()
    place = {name: (Piece(name),) for name in copies}
    weights.check(folder, stored, {**table, **place}, model.state_dict())
    weights.allocate(model, where)
    tensors = model.state_dict()
    weights.fill(stored, table, tensors, where)
    for name in copies:
        weights.check_copy(name, stored, tensors[name])
    lm = DiffusionLM(facts, config, model, tokenizer)
    lm.stored_dtype, lm.stored_dtypes = main, {name: tensor.dtype for name, tensor in stored.items()}
    return lm


def _family(folder: Path, asked: str | None, config: Mapping[str, Any]) -> Family:
    """The family asked for, or detected; a config that is plainly of another one is refused."""
    if asked is None:
        return detect(config)
    facts = get_family(asked)
    others = [] if facts.matches(config) else [each.name for each in families().values() if each.matches(config)]
    if others:
        raise UnsupportedConfig(
            f"{folder / 'config.json'}: the checkpoint is of the family {others[0]} (model_type "
            f"{config.get('model_type')!r}), asked for: {asked}; leave the family out, or give family: {others[0]}"
        )
    return facts


def tensor_table(family: Family, config: Mapping[str, Any], model: nn.Module) -> dict[str, tuple[Piece, ...]]:
    """Official name -> pieces of our tensors."""
    if family.tensors is not None:
        return dict(family.tensors(config))
    return {name: (Piece(name),) for name in model.state_dict()}


def from_config(
    family: str, config: Mapping[str, Any], *, seed: int, dtype: torch.dtype = torch.float32
) -> DiffusionLM:
    """A randomly initialised model (no tokenizer), equal for equal seeds.

    Args:
        family: family name.
        config: official config fields.
        seed: of the initialisation; the global generator is left as it was.
    """
    facts = get_family(family)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(facts, config, dtype=dtype)
    return DiffusionLM(facts, config, model)


def save(
    lm: DiffusionLM,
    folder: Path,
    *,
    dtype: torch.dtype | str | None = None,
    shard_bytes: int = weights.SHARD_BYTES,
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    """Write config, weights (official names) and tokenizer; read back by `load` bit for bit.

    Args:
        lm: model without live adapters.
        folder: created if needed; the caller renames it into place.
        dtype: storage dtype of the weights; buffers (expert biases) keep theirs. Default: each tensor's own, or the one
            it was loaded from where that still holds its values.
        shard_bytes: largest weight file.
        tensors: the model's `state_dict`, whole, where the model itself holds only a part of each weight.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kind = lm.dtype if dtype is None else to_dtype(dtype)
    tensors = lm.model.state_dict() if tensors is None else tensors
    table = tensor_table(lm.family, lm.config, lm.model)
    own = {name: tensors[pieces[0].ours].dtype for name, pieces in table.items()}
    if dtype is not None:
        buffers = {name for name, _ in lm.model.named_buffers()}
        own |= {name: kind for name, pieces in table.items() if pieces[0].ours not in buffers}
    elif lm.stored_dtype == kind:
        # Routers and expert biases are computed in float32 however they are stored; those that were trained stay so.
        changed = {name: stored for name, stored in lm.stored_dtypes.items() if own.get(name, stored) != stored}
        own |= {name: stored for name, stored in changed.items() if weights.fits(tensors, table[name], stored)}
    weights.write(folder, table, tensors, own, shard_bytes=shard_bytes)
    config = dict(lm.config, torch_dtype=str(kind).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if lm.tokenizer is not None:
        lm.tokenizer.save_pretrained(folder)
    return folder


def to_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A floating point dtype from its name.

    Raises:
        ValueError: for anything else.
    """
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ValueError(f"dtype: {dtype!r}; allowed: 'auto', 'float32', 'bfloat16', 'float16' or 'float64'")
    return kind


__all__ = [
    "INDEX", "SINGLE", "BadCheckpoint", "UnknownName", "WeightsNotHere", "build", "from_config", "load", "read_config",
    "read_tokenizer", "resolve", "save", "shards", "tensor_table", "to_dtype",
]  # fmt: skip
