"""Rows that are denoised in a fixed number of steps: their state, an empty start, and the records they end as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from dare_bench.dare.decoding.cost import total_flops
from dare_bench.dare.decoding.generation import NEVER, Cost, Generation
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.dims import Dims
from torch import Tensor


@dataclass
class Canvas:
    """Rows that are being denoised; tensors on the model's device, R rows.

    Attributes:
        ids: int64 [R, S], prompt, tokens and masks, padding.
        prompt: int64 [R], prompt lengths.
        real: bool [R, S], False = padding.
        step_map: int64 [R, S], step that committed a token; -1 where none did.
        confidence: float [R, S], probability (temperature 1) of a token when it was last committed.
        best: float [R, S], highest measure so far of a place, -inf at first (running-confidence remasking).
        nfe, outputs: int64 [R], forwards of a row, and places at which its head was computed.
    """

    ids: Tensor
    prompt: Tensor
    real: Tensor
    step_map: Tensor
    confidence: Tensor
    best: Tensor
    nfe: Tensor
    outputs: Tensor

    def to(self, device: str | torch.device) -> Canvas:
        """The same rows on another device."""
        return Canvas(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    def pick(self, rows: Sequence[int] | Tensor) -> Canvas:
        """A copy of some rows, any of them more than once."""
        index = torch.as_tensor(rows, device=self.ids.device)
        return Canvas(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


@dataclass(frozen=True)
class Guess:
    """What one step saw and guessed.

    Attributes:
        inputs: int64 [R, S], before the step.
        guesses: int64 [R, S], the proposed token at masked places, the input's own elsewhere.
        confidence: float [R, S], probability of the proposed token, 0 where not masked.
    """

    inputs: Tensor
    guesses: Tensor
    confidence: Tensor


def empty(lm: DiffusionLM, prompts: Sequence[Sequence[int]], gen_length: int) -> Canvas:
    """Masks behind prompts, padded at the right to the longest.

    Args:
        lm: special ids, device.
        prompts: token ids.
        gen_length: masks per row.
    """
    count = len(prompts)
    prompt = torch.tensor([len(ids) for ids in prompts])
    width = int(prompt.max()) + gen_length
    ids = torch.full((count, width), lm.pad_token_id)
    for row, tokens in enumerate(prompts):
        ids[row, : len(tokens) + gen_length] = torch.tensor([*tokens, *[lm.mask_token_id] * gen_length])
    zeros = torch.zeros(count, dtype=torch.int64)
    return Canvas(
        ids=ids,
        prompt=prompt,
        real=torch.arange(width) < (prompt + gen_length)[:, None],
        step_map=torch.full_like(ids, NEVER),
        confidence=torch.zeros(ids.shape),
        best=torch.full(ids.shape, -torch.inf),
        nfe=zeros,
        outputs=zeros.clone(),
    ).to(lm.device)


def records(lm: DiffusionLM, canvas: Canvas, block_starts: Sequence[int], gen_length: int) -> list[Generation]:
    """Full canvases as generations. A row's cost is that of all forwards on its way from the prompt.

    Args:
        lm: stop tokens, sizes.
        canvas: rows without masks.
        block_starts: place behind the prompt where each block begins.
        gen_length: tokens per row.
    """
    canvas, found = canvas.to("cpu"), []
    for row, prompt in enumerate(canvas.prompt.tolist()):
        cut = slice(prompt, prompt + gen_length)
        ids = canvas.ids[row, cut].tolist()
        stop = text_length(lm, ids)
        cost = forward_cost(lm.dims, int(canvas.nfe[row]), int(canvas.outputs[row]), prompt + gen_length)
        cost.tokens_committed, cost.tokens_text = gen_length, stop
        found.append(
            Generation(
                token_ids=ids,
                text_ids=ids[:stop],
                step_map=canvas.step_map[row, cut].tolist(),
                confidence=[round(value, 6) for value in canvas.confidence[row, cut].tolist()],
                block_starts=list(block_starts),
                kinds=["denoise"] * cost.nfe,
                finish_reason="stop" if stop < len(ids) else "length",
                cost=cost,
            )
        )
    return found


def text_length(lm: DiffusionLM, ids: Sequence[int]) -> int:
    """Tokens before the first stop token."""
    return next((place for place, token in enumerate(ids) if token in lm.stop_token_ids), len(ids))


def forward_cost(dims: Dims, nfe: int, outputs: int, width: int) -> Cost:
    """Cost of some forwards over one row's canvas.

    Args:
        dims: network sizes.
        nfe: forwards.
        outputs: places at which the head was computed, in all of them.
        width: prompt and response.
    """
    flops = float(total_flops(dims, nfe * width, nfe * width * width, outputs))
    return Cost(nfe=nfe, row_forwards=nfe, positions_fed=nfe * width, kv_read=nfe * width * width, flops=flops)
