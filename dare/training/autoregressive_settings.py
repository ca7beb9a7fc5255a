"""What of the shared optimisation settings the autoregressive trainers cannot honour. Imports no torch."""

from __future__ import annotations

from dare_bench.dare.training.config import TrainConfig


def unsupported(train: TrainConfig, rows: int | None = None) -> dict[str, str]:
    """Settings without a counterpart, field -> what is allowed.

    Args:
        train: optimisation settings.
        rows: rows of one optimiser step (default the batch size): accumulation takes equal parts.
    """
    found = {}
    if train.optimizer != "adamw":
        found["optimizer"] = "adamw for the family autoregressive"
    if train.pad_blocks:
        found["pad_blocks"] = "0 for the family autoregressive, which has no blocks to fill"
    if train.select.startswith("best_on:"):
        found["select"] = "last, or step:N, for the family autoregressive"
    count = train.batch_size if rows is None else rows
    if train.micro_batch_size and count % train.micro_batch_size:
        found["micro_batch_size"] = f"a divisor of the {count} rows of a step for the family autoregressive, or null"
    return found
