"""Stream weight files into a network, and out of it again, under official names: one shard in memory at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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

#: Read at once from a mapped file before its pages are given back.
MAPPED_BYTES = 2**28
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

Table = Mapping[str, tuple[Piece, ...]]


@dataclass(frozen=True)
class Stored:
    """A tensor of a weight file, as its header describes it."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype


def headers(paths: list[Path]) -> dict[str, Stored]:
    """Every stored tensor by name, from the files' headers alone.

    Raises:
        BadCheckpoint: for a damaged file, a name stored twice, or values that are no plain floating point numbers.
    """
    found: dict[str, Stored] = {}
    for path in paths:
        with _open(path, "cpu") as shard:
            for name in shard.keys():  # noqa: SIM118 (not a dict)
                if name in found:
                    raise BadCheckpoint(
                        f"{path}: tensor {name!r} is stored in two files, also in {found[name].file.name}; fetch the "
                        "checkpoint again into an empty folder"
                    )
                entry = shard.get_slice(name)
                kind = entry.get_dtype()
                if kind not in _DTYPES:
                    raise BadCheckpoint(
                        f"{path}: {name} holds {kind} values, supported: {', '.join(_DTYPES)}; quantised weights must be "
                        "converted to bfloat16 first"
                    )
                found[name] = Stored(path, tuple(entry.get_shape()), _DTYPES[kind])
    if not found:
        raise BadCheckpoint(f"{paths[0].parent}: the weight files hold no tensors; fetch the checkpoint again")
    return found


def main_dtype(stored: Mapping[str, Stored]) -> torch.dtype:
    """The dtype that holds most of the values."""
    counts: dict[torch.dtype, int] = {}
    for tensor in stored.values():
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + torch.Size(tensor.shape).numel()
    return max(counts, key=lambda dtype: counts[dtype])


def part(tensors: Mapping[str, Tensor], piece: Piece) -> Tensor:
    """The part of one of our tensors that a piece names, as a view."""
    whole = tensors[piece.ours]
    return whole[piece.index] if piece.index else whole


def fits(tensors: Mapping[str, Tensor], pieces: tuple[Piece, ...], dtype: torch.dtype) -> bool:
    """Whether an official tensor holds only values of a dtype."""
    return all(torch.equal(x, x.to(dtype).to(x.dtype)) for x in (part(tensors, piece) for piece in pieces))


def official_shape(tensors: Mapping[str, Tensor], pieces: tuple[Piece, ...]) -> tuple[int, ...]:
    """Shape of an official tensor: its pieces one after the other along the first axis."""
    shapes = [part(tensors, piece).shape for piece in pieces]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if len(shapes) > 1 else tuple(shapes[0])


def check(folder: Path, stored: Mapping[str, Stored], table: Table, tensors: Mapping[str, Tensor]) -> None:
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
    extra = [f"{name} ({stored[name].file.name})" for name in sorted(set(stored) - set(table))]
    wrong = []
    for name in sorted(set(table) & set(stored)):
        shape = official_shape(tensors, table[name])
        if stored[name].shape != shape:
            wrong.append(f"{name} {stored[name].shape} != {shape} ({stored[name].file.name})")
    if missing or extra or wrong:
        raise BadCheckpoint(
            f"{folder}: the weights do not fit the config. Missing: {_few(missing)}; left over: {_few(extra)}; "
            f"other shape: {_few(wrong)}. Fetch the checkpoint again, or correct config.json (of a merged or pruned model)"
        )


def fill(stored: Mapping[str, Stored], table: Table, tensors: Mapping[str, Tensor], device: torch.device) -> None:
    """Copy every stored tensor to its place, cast to the place's dtype.

    Args:
        stored: from `headers`, checked; names that are not in the table are left out.
        table: official name -> pieces.
        tensors: our tensors, allocated.
        device: of the network.

    Raises:
        BadCheckpoint: for a damaged file, or a weight that is NaN or infinite.
    """
    for name, tensor in _read(stored, table, str(device)):
        check_finite(f"{stored[name].file}: {name}", tensor)
        begin = 0
        for piece in table[name]:
            target = part(tensors, piece)
            rows = target.shape[0] if len(table[name]) > 1 else tensor.shape[0]
            target.copy_(tensor[begin : begin + rows])
            begin += rows


def _read(stored: Mapping[str, Stored], names: Container[str], device: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors in the order of the files. A file's pages stay in memory while it is open: it is reopened now and then."""
    for path in dict.fromkeys(tensor.file for tensor in stored.values()):
        waiting: list[str] | None = None
        while waiting is None or waiting:
            held = 0
            with _open(path, device) as shard:
                if waiting is None:
                    waiting = [name for name in shard.offset_keys() if name in names][::-1]
                while waiting and held < MAPPED_BYTES:
                    name = waiting.pop()
                    tensor = shard.get_tensor(name)
                    held += tensor.nbytes
                    yield name, tensor
                    del tensor


def check_copy(name: str, stored: Mapping[str, Stored], ours: Tensor) -> None:
    """Refuse a stored tensor that should be a copy of another one and is not.

    Args:
        name: of the stored tensor.
        stored: from `headers`.
        ours: what it should equal, loaded.

    Raises:
        BadCheckpoint: naming both.
    """
    rows = max(1, MAPPED_BYTES // (8 * ours[:1].numel()))
    with _open(stored[name].file, "cpu") as shard:
        copy = shard.get_slice(name)
        for begin in range(0, ours.shape[0], rows):
            block = copy[begin : begin + rows].to(ours.device, ours.dtype)
            if not torch.equal(block, ours[begin : begin + rows]):
                raise BadCheckpoint(
                    f"{stored[name].file}: {name} differs from the embedding, and config.json ties them "
                    "(tie_word_embeddings is true): set it to false where the family allows, or remove the tensor"
                )


def check_finite(what: str, tensor: Tensor) -> None:
    """Refuse NaN and infinite values.

    Raises:
        BadCheckpoint: naming `what` (file and tensor).
    """
    # The extremes carry NaN along; two numbers instead of a mask as large as the tensor.
    if tensor.numel() and not all(math.isfinite(bound.item()) for bound in torch.aminmax(tensor)):
        raise BadCheckpoint(
            f"{what} holds NaN or infinite values; the checkpoint is damaged or diverged: fetch it again or take an "
            "earlier one"
        )


@contextmanager
def _open(path: Path, device: str) -> Iterator[Any]:
    try:
        with safe_open(path, "pt", device=device) as shard:
            yield shard
    except SafetensorError as error:
        raise BadCheckpoint(f"{path}: damaged or not a safetensors file ({error}); fetch it again") from error


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
