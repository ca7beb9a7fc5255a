"""What changes logits or confidences before the selection, registered by name. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dare_bench.dare.decoding import options as option_specs
from dare_bench.dare.decoding.options import choice, number
from dare_bench.dare.families.registry import UnknownName
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")


class Weighting:
    """Leaves everything as it is; one object serves all slots of a batch."""

    def reset(self, rows: Tensor) -> None:
        """Forget what belongs to the slots `rows` [A]: they begin a block."""

    def adjust(self, logits: Tensor, row: Tensor, place: Tensor) -> Tensor:
        """Logits that tokens and confidences are taken from.

        Args:
            logits: float [N, V], of N masked positions, each at most once.
            row: int64 [N], their slots.
            place: int64 [N], their places in the block.
        """
        return logits

    def weigh(self, confidence: Tensor, tokens: Tensor, is_eos: Tensor, step: Tensor, steps: Tensor) -> Tensor:
        """Confidences that positions are selected by.

        Args:
            confidence: float [A, b].
            tokens: int64 [A, b], chosen tokens.
            is_eos: bool [A, b], where they end the text.
            step: int64 [A], denoising step inside the block, from 0.
            steps: int64 [A], nominal steps of the block.
        """
        return confidence


@dataclass(frozen=True)
class WeightingEntry:
    """A registered weighting: `build(rows=, block=, vocab=, device=, **options)` makes the object."""

    name: str
    build: Callable[..., Weighting]
    options: Mapping[str, option_specs.Option]
    summary: str


_WEIGHTINGS: dict[str, WeightingEntry] = {}


def weighting(name: str, **options: option_specs.Option) -> Callable[[type[Weighting]], type[Weighting]]:
    """Register a weighting; keyword arguments are its options.

    Raises:
        ValueError: for a name that is taken.
    """

    def add(built: type[Weighting]) -> type[Weighting]:
        if name in _WEIGHTINGS:
            raise ValueError(f"weighting {name!r} is registered twice")
        summary = (built.__doc__ or "").strip().splitlines()[0]
        _WEIGHTINGS[name] = WeightingEntry(name, built, options, summary)
        return built

    return add


def weightings() -> dict[str, WeightingEntry]:
    """All weightings by name."""
    return dict(sorted(_WEIGHTINGS.items()))


def resolve(name: str, options: Mapping[str, Any]) -> tuple[WeightingEntry, dict[str, Any]]:
    """A weighting with its complete options.

    Raises:
        UnknownName: for an unknown weighting or option.
        ValueError: for a value that is not allowed.
    """
    if name not in _WEIGHTINGS:
        raise UnknownName("weighting", name, list(_WEIGHTINGS))
    entry = _WEIGHTINGS[name]
    return entry, option_specs.complete("weighting", name, entry.options, options)


def make(
    name: str, options: Mapping[str, Any], rows: int, block: int, vocab: int, device: torch.device | str
) -> Weighting:
    """The weighting of a batch.

    Args:
        name: registered name.
        options: those given.
        rows: slots of the batch.
        block: longest block.
        vocab: size of the vocabulary.
        device: of the logits.
    """
    entry, merged = resolve(name, options)
    return entry.build(rows=rows, block=block, vocab=vocab, device=device, **merged)


@weighting("none")
class Plain(Weighting):
    """Logits and confidences as the model gives them."""

    def __init__(self, *, rows: int, block: int, vocab: int, device: Any) -> None:
        pass


_GAMMA = "a positive number"


@weighting(
    "eoser",
    min_gamma=number(_GAMMA, lambda value: value > 0, default=0.4),
    max_gamma=number(_GAMMA, lambda value: value > 0, default=1.0),
    schedule=choice("linear", "doubling"),
)
class Eoser(Weighting):
    """Lower the confidence of end tokens, less and less towards the last step of the block.

    The factor goes from `min_gamma` to `max_gamma`: evenly over the steps (``linear``), or with the share of positions
    that the scheduler ``ass`` has committed after the step (``doubling``, published with a `min_gamma` of 0.01).

    Source: yjyddq/EOSER-ASS-RL `eval/generate.py` (arXiv 2509.23924). There the step restarts in every block while the
    total does not, so that the factor never reaches its end; here both belong to the block.
    """

    def __init__(
        self, *, rows: int, block: int, vocab: int, device: Any, min_gamma: float, max_gamma: float, schedule: str
    ) -> None:
        self.low, self.span, self.schedule = min_gamma, max_gamma - min_gamma, schedule

    def weigh(self, confidence: Tensor, tokens: Tensor, is_eos: Tensor, step: Tensor, steps: Tensor) -> Tensor:
        step = torch.minimum(step, steps - 1).double()
        if self.schedule == "doubling":
            share = torch.exp2(step + 1 - steps) - torch.exp2(-steps.double())
        else:  # a block of one step is at its last
            share = torch.where(steps > 1, step / (steps - 1).clamp(min=1), 1.0)
        gamma = (self.low + self.span * share)[:, None].to(confidence.dtype)
        # A measure below zero (negative entropy) falls when it is divided.
        lowered = torch.where(confidence < 0, confidence / gamma, confidence * gamma)
        return torch.where(is_eos, lowered, confidence)


@weighting(
    "credit",
    alpha=number("a number >= 0", lambda value: value >= 0, default=0.7),
    gamma=number("a number >= 0", lambda value: value >= 0, default=0.2),
    decay=number("a number in [0, 1]", lambda value: 0 <= value <= 1, default=0.8),
)
class Credit(Weighting):
    """Add credit to the tokens that earlier forwards of the block found best.

    Each position keeps the tokens that were its best so far with their decaying sums of p ** gamma; the logits get
    alpha * ln(1 + credit). Few tokens per position are ever best, so they are kept as a list, not as a [block, V] table.

    Source: CreditDecoding (arXiv 2510.06133), dInfer `CreditThresholdParallelDecoder`.
    """

    def __init__(
        self, *, rows: int, block: int, vocab: int, device: Any, alpha: float, gamma: float, decay: float
    ) -> None:
        self.alpha, self.gamma, self.decay = alpha, gamma, decay
        self.tokens = torch.zeros((rows, block, 4), dtype=torch.int64, device=device)
        self.values = torch.zeros((rows, block, 4), dtype=torch.float32, device=device)
        self.used = torch.zeros((rows, block), dtype=torch.int64, device=device)

    def reset(self, rows: Tensor) -> None:
        self.values[rows] = 0.0
        self.used[rows] = 0

    def adjust(self, logits: Tensor, row: Tensor, place: Tensor) -> Tensor:
        if not len(logits):
            return logits
        wide = logits if logits.dtype == torch.float64 else logits.float()
        top, best = wide.max(-1)
        earned = (top - wide.logsumexp(-1)).exp() ** self.gamma
        self.values[row, place] *= self.decay
        used = self.used[row, place]
        if int(used.max()) == self.tokens.shape[2]:
            self.tokens = torch.cat([self.tokens, torch.zeros_like(self.tokens)], 2)
            self.values = torch.cat([self.values, torch.zeros_like(self.values)], 2)
        slots = torch.arange(self.tokens.shape[2], device=logits.device)
        known = (self.tokens[row, place] == best[:, None]) & (slots < used[:, None])
        is_known = known.any(1)
        slot = torch.where(is_known, known.int().argmax(1), used)
        self.tokens[row, place, slot] = best
        self.values[row, place, slot] += earned.to(self.values.dtype)
        self.used[row, place] = used + (~is_known)
        credit = torch.zeros_like(wide).scatter_add_(1, self.tokens[row, place], self.values[row, place].to(wide.dtype))
        return wide + self.alpha * credit.log1p_()
