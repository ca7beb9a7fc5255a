"""Left-to-right decoding with a K/V cache: batched, rows independent of each other, a forward per token.

The first forward of a row reads its prompt and gives the first token, every later one reads the newest token and gives
the next. Keys and values live at their position in the sequence, so rows of unlike prompt length share a forward without
padding on the left; rows that are finished leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from dare_bench.dare.decoding import request
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.cost import forward_flops
from dare_bench.dare.decoding.generation import Cost, Generation
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.cache import PositionCache
from dare_bench.dare.randomness import stream_seed, uniform
from torch import Tensor

OnFinish = Callable[[int, Generation], None]


@torch.inference_mode()
def generate(
    lm: DiffusionLM,
    prompts: Sequence[Sequence[int]],
    decoder: DecoderConfig,
    seeds: Sequence[int],
    *,
    batch_size: int = 64,
    on_finish: OnFinish | None = None,
) -> list[Generation]:
    """Decode prompts.

    Args:
        lm: causal model in evaluation mode.
        prompts: token ids, each at least one token.
        decoder: `gen_length`, `temperature` and `early_stop` are honoured; the rest is of diffusion decoding.
        seeds: one per prompt; unused by greedy decoding.
        batch_size: rows per forward; prompts of like length share a batch. Never changes a result.
        on_finish: called with (index, generation) when a batch is done.

    Returns:
        Generations in the order of `prompts`. A row ends with its first stop token (`early_stop` false: it goes on to
        `gen_length`; its text ends there all the same).

    Raises:
        ValueError: for an empty prompt, a missing gen_length, or settings outside their range.
    """
    request.check(prompts, decoder, seeds)
    found: dict[int, Generation] = {}
    by_length = sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), index))
    for first in range(0, len(by_length), batch_size):
        indices = by_length[first : first + batch_size]
        run = _Batch(lm, [prompts[index] for index in indices], decoder, [seeds[index] for index in indices])
        for index, generation in zip(indices, run.decode(), strict=True):
            found[index] = generation
            if on_finish is not None:
                on_finish(index, generation)
    return [found[index] for index in range(len(prompts))]


class _Batch:
    """Decoding state of B rows; every tensor below has the row as its first axis."""

    def __init__(
        self, lm: DiffusionLM, prompts: Sequence[Sequence[int]], decoder: DecoderConfig, seeds: Sequence[int]
    ) -> None:
        self.lm, self.decoder = lm, decoder
        self.limit = int(decoder.gen_length or 0)
        device, count = lm.device, len(prompts)
        self.prompt = torch.tensor([len(prompt) for prompt in prompts], device=device)
        width = int(self.prompt.max()) + self.limit
        self.ids = torch.full((count, width), lm.pad_token_id, device=device)
        for row, prompt in enumerate(prompts):
            self.ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
        self.confidence = torch.zeros((count, self.limit), device=device)
        self.made = torch.zeros(count, dtype=torch.int64, device=device)  # tokens so far = forwards so far
        self.cache = PositionCache(count, width, lm.model.config)
        salt = stream_seed("token")
        self.seeds = torch.tensor([stream_seed(seed, "decode") ^ salt for seed in seeds], device=device)
        self.stops = torch.tensor(sorted(lm.stop_token_ids), device=device)
        self.stopped = torch.zeros(count, dtype=torch.bool, device=device)
        self.wall = [0.0] * count
        self.began = time.perf_counter()

    def decode(self) -> list[Generation]:
        """Run all rows to their end."""
        alive = torch.arange(len(self.prompt), device=self.lm.device)
        for index in range(self.limit):
            self._forward(alive, index)
            newest = self.ids[alive, self.prompt[alive] + index]
            self.stopped[alive] |= torch.isin(newest, self.stops)
            done = self.stopped[alive] if self.decoder.early_stop else torch.zeros_like(alive, dtype=torch.bool)
            if index + 1 == self.limit:
                done = torch.ones_like(done)
            ended = alive[done].tolist()
            if ended:
                wall = time.perf_counter() - self.began
                for row in ended:
                    self.wall[row] = wall
                alive = alive[~done]
                if not len(alive):
                    break
        return [self._generation(row) for row in range(len(self.prompt))]

    def _forward(self, rows: Tensor, index: int) -> None:
        """One forward of `rows`, one token each: number `index` behind the prompt."""
        low = torch.zeros_like(rows) if index == 0 else self.prompt[rows] + index - 1
        high = self.prompt[rows] + index
        width = int((high - low).max())
        slots = low[:, None] + torch.arange(width, device=self.lm.device)
        end = int(high.max())
        # Slots behind a row's prompt hold the pad token: no real token sees them, and each is overwritten when its
        # turn comes.
        allowed = torch.arange(end, device=self.lm.device) <= slots[:, :, None]
        self.cache.aim(rows, slots, end)
        hidden = self.lm.hidden(
            self.ids[rows[:, None], slots],
            mask=allowed[:, None],
            position_ids=slots,
            positions=(high - low - 1)[:, None],
            cache=self.cache,
            aligned=False,
        )
        tokens, probability = self._predict(hidden[:, 0], rows, index)
        self.ids[rows, high] = tokens
        self.confidence[rows, index] = probability
        self.made[rows] += 1

    def _predict(self, hidden: Tensor, rows: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Token and its probability (temperature 1, no noise) for each row: [A], [A]."""
        logits = self.lm.model.lm_head(hidden)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        scores = logits
        if self.decoder.temperature > 0:
            u = uniform(self.seeds[rows] + index * 0x9E3779B1, logits.shape[1])
            scores = logits.double() / self.decoder.temperature - (-u.log()).log()
        token = scores.argmax(-1)
        chosen = logits.gather(1, token[:, None])[:, 0]
        return token, (chosen - logits.logsumexp(-1)).exp().float()

    def _generation(self, row: int) -> Generation:
        begin, made = int(self.prompt[row]), int(self.made[row])
        token_ids = self.ids[row, begin : begin + made].tolist()
        stop = next((i for i, token in enumerate(token_ids) if token in self.lm.stop_token_ids), made)
        return Generation(
            token_ids=token_ids,
            text_ids=token_ids[:stop],
            step_map=list(range(made)),
            confidence=[round(value, 6) for value in self.confidence[row, :made].tolist()],
            block_starts=[0],
            kinds=["prefill+decode", *["decode"] * (made - 1)],
            finish_reason="stop" if bool(self.stopped[row]) else "length",
            cost=cost(self.lm, begin, made, tokens_text=stop, wall_s=self.wall[row]),
        )


def cost(lm: DiffusionLM, prompt: int, made: int, *, tokens_text: int, wall_s: float) -> Cost:
    """What a row costs by itself.

    Args:
        lm: gives the sizes.
        prompt: tokens of the prompt.
        made: tokens generated.
        tokens_text: those before the first stop token.
        wall_s: measured.
    """
    # A causal prompt of p tokens attends to p (p + 1) / 2 keys, (p + 1) / 2 per query.
    flops = forward_flops(lm.dims, prompt, (prompt + 1) / 2, 1)
    keys = prompt * (prompt + 1) // 2
    for index in range(1, made):
        flops += forward_flops(lm.dims, 1, prompt + index, 1)
        keys += prompt + index
    return Cost(
        nfe=made,
        row_forwards=made,
        positions_fed=prompt + made - 1,
        kv_read=keys,
        tokens_committed=made,
        tokens_text=tokens_text,
        flops=flops,
        wall_s=wall_s,
    )
