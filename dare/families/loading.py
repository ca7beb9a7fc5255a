"""Read and write checkpoints with the official key names, without remote code and without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.facts import Family
from dare_bench.dare.families.registry import UnknownName, detect, get_family, models
from dare_bench.kernels import dispatch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

INDEX = "model.safetensors.index.json"


class WeightsNotHere(FileNotFoundError):
    """The weights are neither in a local folder nor in the hub cache; the message says how to get them."""


class BadCheckpoint(ValueError):
    """Files of a checkpoint are missing, damaged, or hold other parameters than the family's."""


def resolve(source: str, revision: str | None = None) -> Path:
    """Find a checkpoint's folder on this machine; nothing is downloaded.

    Args:
        source: a name of `registry.models()`, ``package:<name>``, a folder, or a hub id.
        revision: hub commit; default the registry's pin.

    Raises:
        WeightsNotHere: with the hub id, where was looked, and the command that fetches it.
    """
    entry = models().get(source)
    if entry is not None:
        source, revision = entry.source, revision or entry.revision
    if source.startswith("package:"):
        folder = Path(str(files("dare_bench.dare"))) / "tiny" / source.removeprefix("package:")
    else:
        folder = Path(source).expanduser()
    if (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file():
        return folder
    if source.startswith("package:"):
        raise WeightsNotHere(f"the shipped model {source.removeprefix('package:')!r} is missing from this installation")
    if folder.is_dir():
        raise BadCheckpoint(f"{folder}: no config.json in this folder; a checkpoint is config.json + *.safetensors")
    if source.startswith(("/", ".", "~")) or source.count("/") > 1:
        raise WeightsNotHere(f"{folder}: no such folder; give a folder with config.json + *.safetensors, or a hub id")
    return _in_hub_cache(source, revision)


def _in_hub_cache(hub_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, revision=revision, local_files_only=True))
    except HFValidationError:
        raise WeightsNotHere(f"{hub_id!r} is neither a folder nor a hub id (owner/name)") from None
    except (LocalEntryNotFoundError, FileNotFoundError):
        if "/" not in hub_id:  # more likely a misspelt registry name than a hub id without an owner
            raise UnknownName("model", hub_id, list(models())) from None
        pin = f" --revision {revision}" if revision else ""
        raise WeightsNotHere(
            f"the weights of {hub_id} are not on this machine (no folder of that name, not in the hub cache). "
            f"Fetch them with `hf download {hub_id}{pin}`, or give a local folder: {{family: ..., path: DIR}}"
        ) from None


def read_config(folder: Path) -> dict[str, Any]:
    """Parse config.json as plain JSON (its `model_type` is unknown to transformers)."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{folder / 'config.json'}: not readable as JSON ({error})") from error
    if not isinstance(config, dict):
        raise BadCheckpoint(f"{folder / 'config.json'}: expected an object, found {type(config).__name__}")
    return config


def build(family: Family, config: Mapping[str, Any], *, dtype: torch.dtype, device: torch.device | str) -> nn.Module:
    """Build the family's transformers class for an official config, weights not set (meta device allowed).

    Args:
        family: facts.
        config: official config.json.
        dtype: of the weights; rotary frequencies stay float32 whatever it is.
        device: for example ``"meta"``.
    """
    import transformers

    class_config = getattr(transformers, family.config_class)(**family.to_transformers(config))
    # Padded and block-causal batches bring a boolean mask of their own: choose a path that takes one.
    runs_on = "cuda" if torch.cuda.is_available() else "cpu"
    class_config._attn_implementation = dispatch.choose(runs_on, dtype, mask="arbitrary").attn_implementation
    class_config.is_causal = False
    with torch.device(device):
        model = getattr(transformers, family.transformers_class)._from_config(class_config, dtype=dtype)
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
) -> DiffusionLM:
    """Load a checkpoint.

    Args:
        source: registry name, folder, or hub id (weights must be on this machine).
        family: overrides the detection from config.json.
        dtype: ``auto`` = as stored; else a torch dtype or its name.
        device: ``auto`` = CUDA when there is one, else CPU.
        revision: hub commit.

    Returns:
        The model in evaluation mode, adapters of a LoRA checkpoint merged.

    Raises:
        WeightsNotHere, BadCheckpoint, UnknownName, UnsupportedConfig: see there.
    """
    folder = resolve(str(source), revision)
    if (folder / "adapter_config.json").is_file():
        from dare_bench.dare.training.adapters import load_merged

        return load_merged(folder, dtype=dtype, device=device)
    config = read_config(folder)
    facts = get_family(family) if family else detect(config)
    where = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    state, kind = _read_weights(folder, facts, where, None if dtype == "auto" else _dtype(dtype))
    model = build(facts, config, dtype=kind, device="meta")
    _assign(model, state, folder)
    _restore_buffers(model, where)
    return DiffusionLM(facts, config, model, read_tokenizer(folder))


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
        model = build(facts, config, dtype=dtype, device="cpu")
    return DiffusionLM(facts, config, model)


def save(lm: DiffusionLM, folder: Path, *, dtype: torch.dtype | str | None = None) -> Path:
    """Write config, weights (official names) and tokenizer; read back by `load` bit for bit.

    Args:
        lm: model without live adapters.
        folder: created if needed; the caller renames it into place.
        dtype: storage dtype, default that of the weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kind = lm.dtype if dtype is None else _dtype(dtype)
    tensors = {
        lm.family.unrename(name): tensor.detach().to("cpu", kind).contiguous()
        for name, tensor in lm.model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = dict(lm.config, torch_dtype=str(kind).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if lm.tokenizer is not None:
        lm.tokenizer.save_pretrained(folder)
    return folder


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ValueError(f"dtype: {dtype!r}; allowed: 'auto', 'float32', 'bfloat16', 'float16' or 'float64'")
    return kind


def read_tokenizer(folder: Path) -> Any:
    """The folder's fast tokenizer, or None if it holds none."""
    if not (folder / "tokenizer.json").is_file():
        return None
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(str(folder))


def shards(folder: Path) -> list[Path]:
    """Weight files of a checkpoint, from its index or the single file.

    Raises:
        BadCheckpoint: if there are none, one is missing, or only pickled weights are there.
    """
    if (folder / INDEX).is_file():
        try:
            names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadCheckpoint(
                f"{folder / INDEX}: not a weight index, expected {{weight_map: {{name: file}}}} ({error!r})"
            ) from error
        paths = [folder / os.path.basename(name) for name in sorted(names)]
    else:
        paths = [folder / "model.safetensors"]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        hint = (
            f" Pickled weights ({', '.join(pickled)}) are never read: convert them to safetensors." if pickled else ""
        )
        raise BadCheckpoint(f"{folder}: missing weight file(s) {', '.join(missing)}.{hint}")
    return paths


def _read_weights(
    folder: Path, family: Family, device: torch.device, dtype: torch.dtype | None
) -> tuple[dict[str, Tensor], torch.dtype]:
    """All tensors under our names, each cast as it is read (None: the dtype of the first one)."""
    state: dict[str, Tensor] = {}
    for name, tensor in _stream(shards(folder), device):
        dtype = dtype or tensor.dtype
        state[family.rename(name)] = tensor.to(dtype)
    if dtype is None:
        raise BadCheckpoint(f"{folder}: the weight files hold no tensors")
    return state, dtype


def _stream(paths: list[Path], device: torch.device) -> Iterator[tuple[str, Tensor]]:
    for path in paths:
        try:
            with safe_open(path, "pt", device=str(device)) as shard:
                for name in shard.keys():  # noqa: SIM118 (not a dict)
                    yield name, shard.get_tensor(name)
        except SafetensorError as error:
            raise BadCheckpoint(f"{path}: damaged or not a safetensors file ({error})") from error


def _assign(model: nn.Module, state: dict[str, Tensor], folder: Path) -> None:
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    missing = sorted(set(expected) - set(state))
    extra = sorted(set(state) - set(expected))
    wrong = sorted(name for name in set(expected) & set(state) if expected[name] != state[name].shape)
    if missing or extra or wrong:
        raise BadCheckpoint(
            f"{folder}: the weights do not fit the config. Missing: {_few(missing)}; left over: {_few(extra)}; "
            f"other shape: {_few([f'{name} {tuple(state[name].shape)} != {tuple(expected[name])}' for name in wrong])}"
        )
    model.load_state_dict(state, strict=True, assign=True)


def _few(names: list[str]) -> str:
    return "none" if not names else ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _restore_buffers(model: nn.Module, device: torch.device) -> None:
    """Compute the rotary frequencies, which live in no file and were built on the meta device."""
    for module in model.modules():
        if hasattr(module, "inv_freq") and module.inv_freq.is_meta:
            fresh = type(module)(module.config).to(device)
            for name, buffer in fresh.named_buffers(recurse=False):
                module.register_buffer(name, buffer.float(), persistent=False)


__all__ = ["BadCheckpoint", "UnknownName", "WeightsNotHere", "build", "from_config", "load", "resolve", "save"]
