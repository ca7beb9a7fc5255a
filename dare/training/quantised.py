"""A frozen base in 4 or 8 bits under adapters (QLoRA), by bitsandbytes, where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from dare_bench.dare.families.base import DiffusionLM
from torch import nn

#: Attribute of a network by which peft chooses its layers.
_FLAGS = {"nf4": "is_loaded_in_4bit", "int8": "is_loaded_in_8bit"}


def quantise(lm: DiffusionLM, kind: str, *, compute: torch.dtype) -> list[str]:
    """Hold the matrices inside the layers in few bits; embeddings, head, norms, biases and routers stay as they are.

    Args:
        lm: changed in place, before adapters are injected. It cannot be saved as a checkpoint after that.
        kind: ``nf4`` (4 bits, scales quantised too) or ``int8``.
        compute: dtype of the products.

    Returns:
        Names of the replaced modules.

    Raises:
        ValueError: bitsandbytes is not installed, or the kind is unknown.

    Source:
        QLoRA (arXiv 2305.14314); bitsandbytes.
    """
    makers: dict[str, Callable[[nn.Linear, torch.dtype], nn.Module]] = {"nf4": _nf4, "int8": _int8}
    if kind not in makers:
        raise ValueError(f"peft.quantize: {kind!r}; allowed: {', '.join(makers)}, or null")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ValueError(
            f"peft.quantize: {kind!r} needs bitsandbytes, which is not installed: pip install 'dare-bench[quantized]'"
        )
    found = [name for name, module in lm.model.named_modules() if type(module) is nn.Linear and ".layers." in name]
    for name in found:
        layer = lm.model.get_submodule(name)
        lm.model.set_submodule(name, makers[kind](layer, compute).to(layer.weight.device))
    setattr(lm.model, _FLAGS[kind], True)
    return found


def is_quantised(layer: Any) -> bool:
    """Whether a layer holds its matrix in few bits."""
    return type(layer).__module__.startswith("bitsandbytes.")


def _nf4(layer: nn.Linear, compute: torch.dtype) -> nn.Module:
    import bitsandbytes as bnb

    made = bnb.nn.Linear4bit(
        layer.in_features, layer.out_features, bias=layer.bias is not None, compute_dtype=compute,
        compress_statistics=True, quant_type="nf4",
    )  # fmt: skip
    made.weight = bnb.nn.Params4bit(
        layer.weight.detach(), requires_grad=False, compress_statistics=True, quant_type="nf4"
    )
    return _with_bias(made, layer)


def _int8(layer: nn.Linear, compute: torch.dtype) -> nn.Module:
    import bitsandbytes as bnb

    made = bnb.nn.Linear8bitLt(
        layer.in_features, layer.out_features, bias=layer.bias is not None, has_fp16_weights=False
    )
    made.weight = bnb.nn.Int8Params(layer.weight.detach().to(torch.float16), requires_grad=False)
    return _with_bias(made, layer)


def _with_bias(made: nn.Module, layer: nn.Linear) -> nn.Module:
    if layer.bias is not None:
        made.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
    return made
