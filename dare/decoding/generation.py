"""The record of one decoded answer: tokens, when each was committed, and what it cost. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Step maps hold the 0-based index of the forward (of this row, over its whole generation) that committed a token.
#: -1: never committed; -2: set to the end token behind an earlier one (early_stop: fill), not chosen by the network.
#: -3: a server decoded it and did not tell when.
#: Later blocks of a row that stopped early are cut off, not filled. An edited token keeps the forward that unmasked it.
STEP_CONVENTION = "row-forward-0"
NEVER, FILLED, UNKNOWN = -1, -2, -3


@dataclass
class Cost:
    """Cost counters of one sample.

    Attributes:
        nfe: network calls in which this row took part.
        row_forwards: calls times rows fed for this sample (2 per call under classifier-free guidance).
        positions_fed: query positions fed, padding excluded.
        kv_read: query x key pairs attended, padding excluded.
        tokens_committed: positions that left the mask state, each counted once.
        tokens_text: committed tokens before the first stop token.
        edits: committed tokens that were rewritten.
        flops: floating point operations of the forwards (2 per multiply-add).
        wall_s: seconds from the request to this row's last token; rows of a batch share the clock.
    """

    nfe: int = 0
    row_forwards: int = 0
    positions_fed: int = 0
    kv_read: int = 0
    tokens_committed: int = 0
    tokens_text: int = 0
    edits: int = 0
    flops: float = 0.0
    wall_s: float = 0.0


@dataclass
class Generation:
    """One answer.

    Attributes:
        token_ids: everything behind the prompt up to the end of the last decoded block, stop tokens and fill included.
        text_ids: the answer: `token_ids` before the first stop token.
        step_map: per entry of `token_ids`, see `STEP_CONVENTION`.
        confidence: per entry, probability (temperature 1) of the token when it was committed.
        block_starts: index into `token_ids` where each block begins (the first may begin inside a block of the grid).
        kinds: one entry per forward of this row: ``denoise``, ``prefill+denoise`` or ``store+denoise``; left to right
            ``prefill+decode`` and ``decode``.
        finish_reason: ``stop`` (a stop token was committed) or ``length``.
        cost: counters.
        edits: rewrites of committed tokens: (forward, index into `token_ids`, old id, new id), in order.
        convention: meaning of `step_map`.
    """

    token_ids: list[int]
    text_ids: list[int]
    step_map: list[int]
    confidence: list[float]
    block_starts: list[int]
    kinds: list[str]
    finish_reason: str
    cost: Cost = field(default_factory=Cost)
    edits: list[tuple[int, int, int, int]] = field(default_factory=list)
    convention: str = STEP_CONVENTION
