"""How sampled responses came about, as far as algorithms ask: step maps, denoising states, trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Steps:
    """Denoising steps of the responses with a full guess at each (`Needs.trace` = ``states``).

    Attributes:
        inputs: int64 [B, T, S], what step t read (prompt, committed tokens, masks).
        guesses: int64 [B, T, S], the token sampled at every masked position of it; the input's own token elsewhere.
        confidence: float [B, T, S], probability of the guessed token (temperature 1); 0 where not masked.
        rewards: float [B, T], reward of the text that guess t decodes to.
    """

    inputs: Tensor
    guesses: Tensor
    confidence: Tensor
    rewards: Tensor


@dataclass
class Tree:
    """Partial generations that branch (`Needs.rollout` = ``tree``); the batch's responses are its leaves.

    Attributes:
        states: int64 [M, S], tokens of each node, masks where nothing is committed yet.
        parents: int64 [M], node a node continues; -1 for the root of a prompt (nothing committed).
        member: int64 [M], one response of the batch below the node: it gives prompt length and group.
        leaf: int64 [M], the response a node is; -1 for inner nodes.
        counted: bool [M, S], response positions of a node through its own first stop token; null = not known.
    """

    states: Tensor
    parents: Tensor
    member: Tensor
    leaf: Tensor
    counted: Tensor | None = None


@dataclass
class Trace:
    """How the responses of a batch came about, as far as `Needs` asks.

    Attributes:
        step_map: int64 [B, S], the forward (0-based, of its row) that committed a token; -1 where none did: prompt,
            padding, fill behind an end token, blocks never decoded.
        steps: with ``trace="states"``.
        tree: with ``rollout="tree"``.
        blocks: int64 [B, S], number of the block in which a position was decoded (0-based, of its row); 0 elsewhere.
        limit: longest response that the rollout could give, in tokens; 0 = not known.
    """

    step_map: Tensor
    steps: Steps | None = None
    tree: Tree | None = None
    blocks: Tensor | None = None
    limit: int = 0
