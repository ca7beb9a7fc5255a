"""From prompt/completion examples to batches: tokenisation once, order and padding by seed and step only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dare_bench.dare.algorithms.base import Batch
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed, uniform


@dataclass(frozen=True)
class Encoded:
    """A tokenised example.

    Attributes:
        id: stable sample id.
        prompt: prompt ids, assistant header included.
        response: reply ids with the reply end, no fill.
        columns: the example's other fields (gold answer, tests, ...), handed to reward functions.
    """

    id: str
    prompt: list[int]
    response: list[int]
    columns: Mapping[str, Any]


class TooLong(ValueError):
    """An example is longer than `max_length`."""


def encode(lm: DiffusionLM, examples: Sequence[Mapping[str, Any]], *, max_length: int) -> list[Encoded]:
    """Tokenise prompt (chat text) and completion (plain text + reply end, unless it brings its own).

    Args:
        lm: gives the tokenizer and chat rules.
        examples: ``{"id", "prompt": messages, "completion": str, ...}``; completion may be missing for rollouts.
        max_length: longest prompt + response.

    Raises:
        TooLong: naming the example and its length; nothing is cut silently.
    """
    chat = lm._chat()
    prompts = [chat.render(example["prompt"]) for example in examples]
    completions = [str(example.get("completion", "")) for example in examples]
    encoded = chat.tokenizer([*prompts, *completions], add_special_tokens=False)["input_ids"]
    count = len(examples)
    end = chat.reply_end_id if chat.reply_end_id is not None else lm.eos_token_id
    found = []
    for index, example in enumerate(examples):
        prompt = list(encoded[index])
        response = list(encoded[count + index])
        if "completion" in example and response[-1:] != [end]:
            response.append(end)
        if len(prompt) + len(response) > max_length:
            raise TooLong(
                f"example {example.get('id', index)!r} has {len(prompt)} + {len(response)} tokens, "
                f"max_length is {max_length}; raise max_length or drop the example"
            )
        columns = {key: value for key, value in example.items() if key not in ("prompt", "completion", "id")}
        found.append(Encoded(str(example.get("id", index)), prompt, response, columns))
    return found


def order(count: int, *, seed: int, start: int, size: int) -> list[int]:
    """Indices of the examples number start..start+size-1 of an endless shuffled stream.

    Each epoch is a permutation of its own, so no example repeats before all were seen. The stream is a function of the
    seed: nothing is stored to resume.
    """
    indices: list[int] = []
    while len(indices) < size:
        position = start + len(indices)
        epoch, offset = divmod(position, count)
        permutation = uniform([stream_seed(seed, "order", epoch)], count)[0].argsort().tolist()
        indices += permutation[offset : offset + size - len(indices)]
    return indices


def collate(
    lm: DiffusionLM,
    rows: Sequence[Encoded],
    *,
    extra_blocks: Sequence[int] | None = None,
    uids: Sequence[str] | None = None,
) -> Batch:
    """Pad examples to one supervised batch.

    Full attention: every row is filled with end tokens to the longest of the batch; the fill is attended and counted
    (this is how the model learns to stop). Block diffusion: each row is filled to a multiple of the block length; the
    rest is padding, neither attended nor counted.

    Args:
        lm: special ids and block length.
        rows: tokenised examples.
        extra_blocks: further blocks of end tokens per row.
        uids: sample ids that seed the draws; default the examples' own.
    """
    size = lm.block_length
    extras = list(extra_blocks) if extra_blocks is not None else [0] * len(rows)
    lengths = []
    for row, extra in zip(rows, extras, strict=True):
        length = len(row.prompt) + len(row.response)
        whole = -(-length // size) * size if lm.is_block_causal else length
        lengths.append(whole + extra * size)
    width = max(lengths)
    final = lengths if lm.is_block_causal else [width] * len(rows)
    ids = torch.full((len(rows), width), lm.pad_token_id, dtype=torch.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row.prompt) + len(row.response)] = torch.tensor([*row.prompt, *row.response])
    prompt_lengths = torch.tensor([len(row.prompt) for row in rows])
    ends = torch.tensor(final)
    columns = torch.arange(width)
    counted = (columns >= prompt_lengths[:, None]) & (columns < ends[:, None])
    return Batch(
        ids=ids,
        prompt_lengths=prompt_lengths,
        lengths=ends,
        counted=counted,
        sample_ids=list(uids) if uids is not None else [row.id for row in rows],
        groups=torch.arange(len(rows)),
        mask_token_id=lm.mask_token_id,
        eos_token_id=lm.eos_token_id,
        block_length=lm.block_length if lm.is_block_causal else 0,
    )


def collate_pairs(lm: DiffusionLM, chosen: Sequence[Encoded], rejected: Sequence[Encoded]) -> Batch:
    """Pad preference pairs to one batch: rows 2i and 2i + 1 are the chosen and the rejected response of pair i.

    Unlike supervised examples, no row is filled with end tokens: the likelihood is that of the response, its end token
    included; padding is neither attended nor counted.

    Args:
        lm: special ids and block length.
        chosen, rejected: tokenised examples, in the same order.
    """
    rows = [row for pair in zip(chosen, rejected, strict=True) for row in pair]
    sides = [f"{row.id}/{('chosen', 'rejected')[index % 2]}" for index, row in enumerate(rows)]
    batch = collate(lm, rows, uids=sides)
    batch.lengths = batch.prompt_lengths + torch.tensor([len(row.response) for row in rows])
    batch.counted = batch.response
    batch.groups = torch.arange(len(rows)) // 2
    batch.chosen = torch.arange(len(rows)) % 2 == 0
    return batch
