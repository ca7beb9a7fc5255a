"""What an algorithm is: `Needs`, `Rows`, `Algorithm`. Imports torch only when rows are made.

Every algorithm is a rollout kind, a deterministic function from responses and a seed to *rows* (corrupted inputs with
target positions), and a scalar function of the rows' log-probabilities and the advantages. Masks, scoring of old and
reference policies, memory, batching, sharding and logging belong to `dare.training`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from dare_bench.dare.lazy import lazy_import
from dare_bench.dare.randomness import stream_seed

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")


@dataclass(frozen=True)
class Needs:
    """What the engine must provide.

    Attributes:
        rollout: ``none`` (a data set), ``policy``, ``ar`` (left to right) or ``tree``.
        trace: denoising trace of the rollout: ``none``, ``step_map`` or ``states``.
        old: score the rows with the weights that made the rollout.
        ref: reference policy: ``none``, ``frozen`` copy, or ``adapter_off``.
        outputs: ``logp`` of the targets (logits where a full-vocabulary divergence is needed).
        pairs: the data are chosen/rejected pairs.
        critic: a value network is trained beside.
    """

    rollout: Literal["none", "policy", "ar", "tree"] = "policy"
    trace: Literal["none", "step_map", "states"] = "none"
    old: bool = True
    ref: Literal["none", "frozen", "adapter_off"] = "none"
    outputs: Literal["logp", "logits"] = "logp"
    pairs: bool = False
    critic: bool = False


@dataclass
class Rows:
    """Corrupted inputs with target positions: N rows, S input length, K candidates (normally 1).

    Attributes:
        ids: int64 [N, S], what the network reads (the noisy part, for ``noisy_clean``).
        targets: int64 [N, S, K], token(s) scored at each position.
        mask: bool [N, S], positions that are scored and counted.
        weight: float [N, S], estimator weight of a position (1/t, n/k, ...), normaliser included where one is fixed.
        owner: int64 [N], index of the response in the batch.
        draw: int64 [N], Monte-Carlo draw, step or position index.
        position_ids: int64 [N, S], place of each token in its sequence.
        real: bool [N, S], False = padding.
        layout: ``full`` (the family's own attention) or ``noisy_clean`` (doubled layout of block diffusion).
        block_length: tokens per block, for ``noisy_clean``.
        context: int64 [N, L], the clean sequence, for ``noisy_clean``.
        context_real: bool [N, L].
    """

    ids: Tensor
    targets: Tensor
    mask: Tensor
    weight: Tensor
    owner: Tensor
    draw: Tensor
    position_ids: Tensor
    real: Tensor
    layout: Literal["full", "noisy_clean"] = "full"
    block_length: int = 0
    context: Tensor | None = None
    context_real: Tensor | None = None

    def __len__(self) -> int:
        return self.ids.shape[0]

    def select(self, index: Tensor) -> Rows:
        """The rows at `index` (int64 [n]), with columns that are padding in all of them cut off."""
        fields = {name: getattr(self, name)[index] for name in _PER_ROW}
        width = _last_true(fields["real"])
        fields |= {name: fields[name][:, :width] for name in _PER_ROW if name not in ("owner", "draw")}
        if self.context is not None:
            real = self.context_real[index]
            length = _last_true(real)
            fields |= {"context": self.context[index][:, :length], "context_real": real[:, :length]}
        return replace(self, **fields)

    def to(self, device: Any) -> Rows:
        """The same rows on another device."""
        names = [*_PER_ROW, *(("context", "context_real") if self.context is not None else ())]
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    @property
    def tokens_fed(self) -> int:
        """Tokens the network reads for these rows, padding excluded."""
        fed = int(self.real.sum())
        return fed if self.context_real is None else fed + int(self.context_real.sum())


_PER_ROW = ("ids", "targets", "mask", "weight", "owner", "draw", "position_ids", "real")


def _last_true(real: Tensor) -> int:
    columns = real.any(0).nonzero()
    return int(columns[-1]) + 1 if len(columns) else 1


@dataclass
class Batch:
    """Prompts with responses, right-padded; what `rows` is made from.

    Attributes:
        ids: int64 [B, S], prompt then response then padding.
        prompt_lengths: int64 [B].
        lengths: int64 [B], prompt + response.
        counted: bool [B, S], response positions that count in the loss.
        sample_ids: [B] stable ids; with the run seed they seed every draw of a row.
        groups: int64 [B], prompt group of a response (reinforcement learning), else 0..B-1.
        rewards: float [B] or None.
        mask_token_id, eos_token_id: special ids.
        block_length: blocks of the block families; 0 for full attention.
    """

    ids: Tensor
    prompt_lengths: Tensor
    lengths: Tensor
    counted: Tensor
    sample_ids: Sequence[str]
    groups: Tensor
    mask_token_id: int
    eos_token_id: int
    block_length: int = 0
    rewards: Tensor | None = None

    @property
    def response(self) -> Tensor:
        """bool [B, S], every position behind the prompt, padding excluded."""
        columns = torch.arange(self.ids.shape[1])
        return (columns >= self.prompt_lengths[:, None]) & (columns < self.lengths[:, None])

    @property
    def real(self) -> Tensor:
        """bool [B, S], False = padding."""
        return torch.arange(self.ids.shape[1]) < self.lengths[:, None]


@dataclass(frozen=True)
class Context:
    """Where in the run a call happens; seeds depend on nothing else.

    Attributes:
        run_seed: seed of the training run.
        step: optimiser step (supervised) or rollout index.
        total_steps: of the run.
        inner: inner iteration (pass over one rollout batch).
    """

    run_seed: int
    step: int = 0
    total_steps: int = 1
    inner: int = 0

    def seeds(self, stream: str, batch: Batch) -> list[int]:
        """One seed per response: equal for old, reference and policy, independent of batching and world size."""
        return [
            stream_seed(self.run_seed, stream, self.step, self.inner, sample_id, index)
            for sample_id, index in zip(batch.sample_ids, _repeat_index(batch.sample_ids), strict=True)
        ]

    def seed(self, stream: str) -> int:
        """One seed for the whole batch."""
        return stream_seed(self.run_seed, stream, self.step, self.inner)


def _repeat_index(sample_ids: Sequence[str]) -> list[int]:
    seen: dict[str, int] = {}
    index = []
    for sample_id in sample_ids:
        index.append(seen.get(sample_id, 0))
        seen[sample_id] = index[-1] + 1
    return index


@runtime_checkable
class Algorithm(Protocol):
    """The interface; one class per file, registered by `registry.register`."""

    name: str
    needs: Needs
    separable: bool

    def advantages(self, batch: Batch) -> Tensor:
        """Advantages float [B] from `batch.rewards` and `batch.groups` (unused without a rollout)."""

    def rows(self, batch: Batch, context: Context) -> Iterable[Rows]:
        """Rows of one optimiser step; equal context, equal rows."""

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Scalar loss and metrics from log-probabilities [N, S, K] (0 where `rows.mask` is False)."""
