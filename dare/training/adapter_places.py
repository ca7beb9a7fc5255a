"""Which part of a network a module named in an adapter file is: by our names or by the family's official ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.loading import tensor_table
from torch import Tensor, nn

_FUSED = (".experts.gate_up_proj", ".experts.down_proj")


@dataclass(frozen=True)
class Place:
    """A matrix, or a stack of matrices, of the network.

    Attributes:
        name: of the parameter.
        index: what of it; empty = all.
        begin, end: rows of the adapter's B that belong to it; end null = to the last.
    """

    name: str
    index: tuple[Any, ...] = ()
    begin: int = 0
    end: int | None = None

    def of(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The weights."""
        return weights[self.name][self.index] if self.index else weights[self.name]

    def rows_of(self, b: Tensor) -> Tensor:
        """Its rows of B."""
        return b[self.begin : self.end]


#: Module name -> the places it may mean; several where names leave it open and shapes decide.
Modules = dict[str, list[tuple[Place, ...]]]


def our_modules(lm: DiffusionLM) -> Modules:
    """Modules that an adapter of the transformers class may name."""
    found: Modules = {}
    tables = _tables(lm)
    for name, weight in lm.model.named_parameters():
        if name.endswith(_FUSED):
            # peft nests the tensors of one module (``experts``, ``experts.base_layer``), in an order that is its own.
            module = name.rpartition(".")[0]
            for nested in (module, f"{module}.base_layer"):
                found.setdefault(nested, []).append((Place(name),))
        elif name.endswith(".weight") and weight.dim() == 2 and name not in tables:
            found[name.removesuffix(".weight")] = [(Place(name),)]
    return found


def official_modules(lm: DiffusionLM) -> Modules:
    """Modules that an adapter of the family's released code may name: separate experts, one map for q, k and v."""
    weights, tables = dict(lm.model.named_parameters()), _tables(lm)
    found: Modules = {}
    for official, pieces in tensor_table(lm.family, lm.config, lm.model).items():
        if not official.endswith(".weight") or any(p.ours not in weights or p.ours in tables for p in pieces):
            continue
        shapes = [weights[piece.ours][piece.index].shape for piece in pieces]
        if any(len(shape) != 2 for shape in shapes):
            continue
        places, begin = [], 0
        for piece, shape in zip(pieces, shapes, strict=True):
            places.append(Place(piece.ours, piece.index, begin, begin + shape[0]))
            begin += shape[0]
        found[official.removesuffix(".weight")] = [tuple(places)]
    return found


def _tables(lm: DiffusionLM) -> set[str]:
    return {f"{name}.weight" for name, module in lm.model.named_modules() if isinstance(module, nn.Embedding)}


def required(settings: Mapping[str, Any], held: list[str], known: Modules) -> set[str]:
    """Modules that an adapter's settings name, so that its file must hold them.

    Args:
        settings: adapter_config.json.
        held: modules of the file.
        known: those of the names that the file uses.
    """
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    targets = settings.get("target_modules") or []
    everything = targets == "all-linear"
    names = ("exclude_modules", "layers_to_transform", "layers_pattern")
    own = {name: settings.get(name) for name in names if settings.get(name) is not None}
    config = LoraConfig(target_modules=targets, **own)
    has_experts = any(".experts." in module for module in held)  # as modules: transformers 5 has none
    found = set()
    for module, choices in known.items():
        if choices[0][0].name.endswith(_FUSED) and not (choices[0][0].index and has_experts):
            continue
        # Routers are linear maps in some releases and bare parameters in others.
        is_left_out = module.endswith(("lm_head", "transformer.ff_out", "mlp.gate"))
        if not is_left_out if everything else check_target_module_exists(config, module):
            found.add(module)
    return found | _nested(settings.get("target_parameters") or [], known)


def _nested(targets: list[str], known: Modules) -> set[str]:
    found = set()
    tensors = {choice[0].name for choices in known.values() for choice in choices if not choice[0].index}
    for name in tensors:
        if name.endswith(_FUSED) and any(name == target or name.endswith(f".{target}") for target in targets):
            module = name.rpartition(".")[0]
            found.add(f"{module}.base_layer" if module in found else module)
    return found
