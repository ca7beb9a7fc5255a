"""Stream weight files into a network, and out of it again, under official names: one shard in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from dare_bench.dare.families.keys import Piece
from dare_bench.dare.families.places import INDEX, SINGLE, BadCheckpoint
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

#: Largest weight file that is written.
SHARD_BYTES = 5 * 10**9
HEAD = "lm_head.weight"

Table = Mapping[str, tuple[Piece, ...]]


def headers(paths: list[Path]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Name -> (shape, dtype) of every stored tensor, from the files' headers alone.

    Raises:
        BadCheckpoint: for a damaged file, or a name stored twice.
    """
    found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for path in paths:
        with _open(path, "cpu") as shard:
            for name in shard.keys():  # noqa: SIM118 (not a dict)
                if name in found:
                    raise BadCheckpoint(f"{path}: tensor {name!r} is stored in two files")
                part = shard.get_slice(name)
                found[name] = (tuple(part.get_shape()), _DTYPES.get(part.get_dtype(), torch.float32))
    if not found:
        raise BadCheckpoint(f"{paths[0].parent}: the weight files hold no tensors")
    return found


_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def main_dtype(stored: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> torch.dtype:
    """The dtype that holds most of the values."""
    counts: dict[torch.dtype, int] = {}
    for shape, dtype in stored.values():
        counts[dtype] = counts.get(dtype, 0) + torch.Size(shape).numel()
    return max(counts, key=lambda dtype: counts[dtype])


def part(tensors: Mapping[str, Tensor], piece: Piece) -> Tensor:
    """The part of one of our tensors that a piece names, as a view."""
    whole = tensors[piece.ours]
    return whole[piece.index] if piece.index else whole


def official_shape(tensors: Mapping[str, Tensor], pieces: tuple[Piece, ...]) -> tuple[int, ...]:
    """Shape of an official tensor: its pieces one after the other along the first axis."""
    shapes = [part(tensors, piece).shape for piece in pieces]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if len(shapes) > 1 else tuple(shapes[0])


def check(
    folder: Path, stored: Mapping[str, tuple[tuple[int, ...], torch.dtype]], table: Table, tensors: Mapping[str, Tensor]
) -> None:
    """Compare what is stored with what the config needs; nothing has been allocated yet.

    Args:
        folder: for messages.
        stored: from `headers`.
        table: official name -> pieces.
        tensors: our tensors (on the meta device).

    Raises:
        BadCheckpoint: missing, left-over or differently shaped tensors, by name.
    """
    missing = sorted(set(table) - set(stored))
    extra = sorted(set(stored) - set(table))
    wrong = []
    for name in sorted(set(table) & set(stored)):
        shape = official_shape(tensors, table[name])
        if stored[name][0] != shape:
            wrong.append(f"{name} {stored[name][0]} != {shape}")
    if missing or extra or wrong:
        raise BadCheckpoint(
            f"{folder}: the weights do not fit the config. Missing: {_few(missing)}; left over: {_few(extra)}; "
            f"other shape: {_few(wrong)}"
        )


def fill(paths: list[Path], table: Table, tensors: Mapping[str, Tensor], device: torch.device) -> None:
    """Copy every stored tensor to its place, cast to the place's dtype.

    Args:
        paths: weight files.
        table: official name -> pieces.
        tensors: our tensors, allocated.
        device: of the network.

    Raises:
        BadCheckpoint: for a damaged file, or a weight that is NaN or infinite.
    """
    for path in paths:
        with _open(path, str(device)) as shard:
            for name in shard.keys():  # noqa: SIM118 (not a dict)
                tensor = shard.get_tensor(name)
                _check_finite(path, name, tensor)
                begin = 0
                for piece in table[name]:
                    target = part(tensors, piece)
                    rows = target.shape[0] if len(table[name]) > 1 else tensor.shape[0]
                    target.copy_(tensor[begin : begin + rows])
                    begin += rows


def _check_finite(path: Path, name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise BadCheckpoint(f"{path}: {name} holds {tensor.dtype} values; weights are floating point numbers")
    if tensor.numel() and not all(bool(bound.isfinite()) for bound in torch.aminmax(tensor)):
        raise BadCheckpoint(f"{path}: {name} holds NaN or infinite values; the checkpoint is damaged or diverged")


@contextmanager
def _open(path: Path, device: str) -> Iterator[Any]:
    try:
        with safe_open(path, "pt", device=device) as shard:
            yield shard
    except SafetensorError as error:
        raise BadCheckpoint(f"{path}: damaged or not a safetensors file ({error})") from error


def allocate(model: nn.Module, device: torch.device) -> None:
    """Give every parameter memory on a device (contents undefined), and move the buffers there."""
    if hasattr(model, "tie_weights"):
        model.tie_weights()  # first: a weight that several modules share gets memory once
    given: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in given:
                    fresh = torch.empty_like(parameter, device=device)
                    given[id(parameter)] = nn.Parameter(fresh, requires_grad=parameter.requires_grad)
                module._parameters[name] = given[id(parameter)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and not buffer.is_meta:
                module._buffers[name] = buffer.to(device)


def write(
    folder: Path,
    table: Table,
    tensors: Mapping[str, Tensor],
    dtypes: Mapping[str, torch.dtype],
    *,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write weight files under official names, with an index when there are several.

    Args:
        folder: exists.
        table: official name -> pieces.
        tensors: our tensors.
        dtypes: official name -> stored dtype.
        shard_bytes: largest file, unless one tensor alone is larger.
    """
    from huggingface_hub.serialization import split_state_dict_into_shards_factory

    sizes = {
        name: torch.Size(official_shape(tensors, pieces)).numel() * dtypes[name].itemsize
        for name, pieces in table.items()
    }
    plan = split_state_dict_into_shards_factory(
        sizes,  # type: ignore[arg-type]
        get_storage_size=lambda size: size,  # type: ignore[arg-type, return-value]
        filename_pattern=SINGLE.replace(".safetensors", "{suffix}.safetensors"),
        get_storage_id=lambda size: None,
        max_shard_size=shard_bytes,
    )
    for file, names in plan.filename_to_tensors.items():
        held = {name: _gather(table[name], tensors, dtypes[name]) for name in names}
        save_file(held, folder / file, metadata={"format": "pt"})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _gather(pieces: tuple[Piece, ...], tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    parts = [part(tensors, piece).detach().to("cpu", dtype) for piece in pieces]
    # A slice of a fused tensor must not drag the whole storage into the file.
    return torch.cat(parts) if len(parts) > 1 else parts[0].clone(memory_format=torch.contiguous_format)


def _few(names: list[str]) -> str:
    return "none" if not names else ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
