"""Bytes a job needs, from the official config alone: planning figures (allow 15 %).

Weights and states are exact, the rest is an estimate. A job is refused only when weights and states alone exceed the
device; it is warned about when the whole estimate does. Under full sharding each device holds its share of weights and
states, and one layer whole while it computes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dare_bench.dare.families import registry as family_registry
from dare_bench.dare.families.dims import Dims
from dare_bench.dare.training.config import TrainConfig, base_dtype
from dare_bench.harness.resolved import Model

GIB = 2**30
_BYTES = {"float32": 4, "bfloat16": 2}
#: Bytes per weight of a quantised base, scales included; its embeddings and head stay as they compute.
_QUANTISED = {"nf4": 0.52, "int8": 1.01}
#: Log-probs are formed in chunks of positions (`kernels.token_logprob`), so the vocabulary term does not grow further.
LOGIT_CHUNK = 1024


@dataclass(frozen=True)
class Memory:
    """Estimate of one job.

    Attributes:
        fixed: weights and optimiser states, bytes; exact.
        working: activations, logits and cache, bytes; estimate.
        layer: largest layer (or the embedding), which sharded work gathers whole, bytes.
    """

    fixed: int
    working: int = 0
    layer: int = 0

    @property
    def total(self) -> int:
        """Everything."""
        return self.fixed + self.working

    def devices(self, device_bytes: int, *, doubling: bool) -> int | None:
        """The smallest number of devices whose memory holds weights and states, sharded.

        Args:
            device_bytes: memory of one.
            doubling: try 1, 2, 4, 8, … only.

        Returns:
            The number, or null when no number is enough (one layer alone is too large).
        """
        if self.fixed <= device_bytes:
            return 1
        room = device_bytes - self.layer
        if room <= 0:
            return None
        count = max(2, -(-self.fixed // room))
        return 1 << (count - 1).bit_length() if doubling else count


@dataclass(frozen=True)
class Figures:
    """What a model takes whatever the suite does with it.

    Attributes:
        weights: in bfloat16.
        lora: bfloat16 weights, and adapters in float32 with gradients and both moments of AdamW.
        full: float32 weights, gradients and both moments.
    """

    weights: Memory
    lora: Memory
    full: Memory


def figures(model: Model, *, r: int, experts: bool = False) -> Figures | None:
    """Planning figures of a model; null when its sizes are not known here.

    Args:
        model: with its config.
        r: rank of adapters.
        experts: adapters also on routed experts.
    """
    if not model.config:
        return None
    dims = family_registry.get_family(model.family).dims(model.config)
    half, layer = 2 * dims.parameters, 2 * dims.largest_layer
    adapters = dims.lora_parameters(r, experts=experts)
    return Figures(
        Memory(half, 0, layer), Memory(half + 16 * adapters, 0, layer), Memory(16 * dims.parameters, 0, layer)
    )


def parameters(model: Model) -> int | None:
    """Exact weight count of a model's config; null when its sizes are not known here."""
    return family_registry.get_family(model.family).parameters(model.config) if model.config else None


def decoding(model: Model, *, dtype: str, batch: int, tokens: int, block: int | None, exact_cache: bool) -> Memory:
    """Memory of decoding.

    Args:
        model: with its config.
        dtype: of the weights.
        batch: rows decoded together.
        tokens: prompt and generation.
        block: positions whose logits are formed at once; null = the checkpoint's block length.
        exact_cache: keys and values of finished blocks are kept.
    """
    family, config = model.facts
    dims = family.dims(config)
    width = _BYTES[dtype]
    positions = block or family.block_length(config)
    cache = family.kv_bytes_per_token(config, width) * batch * tokens if exact_cache else 0
    activations = width * batch * tokens * (8 * dims.hidden + 4 * dims.mlp_width)
    logits = batch * positions * dims.vocab * (width + 4)
    return Memory(width * dims.parameters, cache + activations + logits, width * dims.largest_layer)


def training(model: Model, train: TrainConfig, *, tokens: int, needs_reference: bool) -> Memory:
    """Memory of training.

    Args:
        model: with its config.
        train: optimisation settings.
        tokens: prompt and response of the longest example; the doubled layout of block families is added here.
        needs_reference: a frozen copy of the model is kept beside.
    """
    family = family_registry.get_family(model.family)
    dims = family.dims(model.config)
    count = dims.parameters
    if train.peft is None:
        states = 16 * count
    else:
        states = _frozen(dims, train) + 16 * dims.lora_parameters(train.peft.r, experts=train.peft.experts)
    if needs_reference and train.peft is None:
        states += _BYTES["float32"] * count  # a copy of the weights that learn
    rows = train.micro_batch_size or train.batch_size
    fed = rows * tokens * (2 if family.block_causal else 1)
    width = _BYTES[train.dtype]
    layer = width * fed * (8 * dims.hidden + 4 * dims.mlp_width)
    stored = dims.layers * width * fed * dims.hidden + layer if train.gradient_checkpointing else dims.layers * layer
    logits = min(rows * tokens, LOGIT_CHUNK) * dims.vocab * 10
    return Memory(states, stored + logits, width * dims.largest_layer)


def _frozen(dims: Dims, train: TrainConfig) -> int:
    """Bytes of the base under adapters."""
    width = _BYTES[base_dtype(train)]
    if train.peft is None or train.peft.quantize is None:
        return width * dims.parameters
    plain = min(2 * dims.vocab * dims.hidden, dims.parameters)
    return int(width * plain + _QUANTISED[train.peft.quantize] * (dims.parameters - plain))
