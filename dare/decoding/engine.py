"""The decoding engine: semi-autoregressive blocks, any selector, any cache, rows independent of each other.

All rows of a batch work on their own current block in rounds. The first forward of a round feeds what the cache does
not hold yet up to the block's end, so that prefill and the storing of the finished block are fused with the first
denoising step; later forwards feed the block. Rows whose block is finished wait outside the forward; rows that are
finished leave. Nothing of a row depends on the others: every quantity below is indexed by row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from dare_bench.dare.decoding import caches, request, schedulers, selectors
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.cost import forward_flops
from dare_bench.dare.decoding.generation import Cost, Generation
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed, uniform
from dare_bench.kernels import commit
from torch import Tensor

#: Output-head rows computed at once: bounds the logits to this many times V.
HEAD_ROWS = 1024

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
        lm: model in evaluation mode.
        prompts: token ids, each at least one token.
        decoder: settings; `gen_length` must be set.
        seeds: one per prompt; unused by greedy decoding.
        batch_size: rows per forward; prompts of like length share a batch. Never changes a result.
        on_finish: called with (index, generation) when a batch is done.

    Returns:
        Generations in the order of `prompts`.

    Raises:
        ValueError: for an empty prompt, a missing gen_length, or settings that do not fit the model.
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
        self.entry, self.options = selectors.resolve(decoder.selector, decoder.selector_options)
        self.schedule = schedulers.resolve(decoder.scheduler)
        self.policy = caches.policy(decoder.cache, lm)
        self.block = decoder.block_length or lm.block_length
        self.steps = decoder.steps_per_block or self.block
        device = lm.device
        count = len(prompts)
        self.prompt = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self.canvas_end = self.prompt + decoder.gen_length
        if lm.is_block_causal:  # the grid starts at position 0; the last block is always whole
            self.canvas_end = -(-self.canvas_end // self.block) * self.block
        width = int(self.canvas_end.max())
        self.ids = torch.full((count, width), lm.pad_token_id, device=device)
        columns = torch.arange(width, device=device)
        self.ids[columns < self.canvas_end[:, None]] = lm.mask_token_id
        for row, prompt in enumerate(prompts):
            self.ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
        self.step_map = torch.full((count, width), -1, device=device)
        self.confidence = torch.zeros((count, width), device=device)
        self.stored = torch.zeros(count, dtype=torch.int64, device=device)
        self.start = (self.prompt // self.block) * self.block if lm.is_block_causal else self.prompt.clone()
        self.cache = None
        if self.policy.keeps:
            # Slack: rows with a shorter window than others are padded beyond their block, into slots nobody reads.
            self.cache = caches.PositionCache(count, width + 2 * self.block, lm.model.config)
        self.seeds = torch.tensor([stream_seed(seed, "decode") for seed in seeds], device=device)
        self.stops = torch.tensor(sorted(lm.stop_token_ids), device=device)
        self.costs = [Cost() for _ in range(count)]
        self.nfe = torch.zeros(count, dtype=torch.int64, device=device)  # forwards so far, beside the step maps
        self.kinds: list[list[str]] = [[] for _ in range(count)]
        self.block_starts: list[list[int]] = [[] for _ in range(count)]
        self.decoded_to = self.prompt.clone()
        self.stopped = torch.zeros(count, dtype=torch.bool, device=device)
        self.began = time.perf_counter()

    def decode(self) -> list[Generation]:
        """Run all rows to their end."""
        alive = torch.arange(len(self.prompt), device=self.lm.device)
        while len(alive):
            self._round(alive)
            finished = self._finish(alive)
            self.start[alive] += self.block
            alive = alive[~finished]
        return [self._generation(row) for row in range(len(self.prompt))]

    def _round(self, alive: Tensor) -> None:
        """Denoise the current block of the rows `alive` until it holds no mask."""
        start = self.start[alive]
        end = torch.minimum(start + self.block, self.canvas_end[alive])
        for row, first in zip(alive.tolist(), (start.clamp(min=0) - self.prompt[alive]).tolist(), strict=True):
            self.block_starts[row].append(max(first, 0))
        masks = self._masked(alive, start, end).sum(1)
        # LLaDA spreads the masks of the block over its steps; SDAR the block's length, capped at what is masked.
        basis = [self.block] * len(alive) if self.lm.is_block_causal else masks.tolist()
        plan = torch.tensor([self.schedule(count, self.steps) for count in basis], device=self.lm.device)
        step, rows = 0, torch.arange(len(alive), device=self.lm.device)
        while len(rows):
            quota = plan[rows, step] if step < self.steps else torch.ones_like(rows)
            self._step(alive[rows], start[rows], end[rows], quota, first=step == 0)
            step += 1
            rows = rows[self._masked(alive[rows], start[rows], end[rows]).any(1)]
        self.decoded_to[alive] = end
        self.stored[alive] = start

    def _masked(self, rows: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """Masked positions of the current block, bool [A, b]."""
        columns = start[:, None] + torch.arange(self.block, device=self.lm.device)
        inside = columns < end[:, None]
        tokens = self.ids[rows[:, None], columns.clamp(max=self.ids.shape[1] - 1)]
        return (tokens == self.lm.mask_token_id) & inside & (columns >= self.prompt[rows][:, None])

    def _step(self, rows: Tensor, start: Tensor, end: Tensor, quota: Tensor, *, first: bool) -> None:
        """One forward of `rows`, one commit."""
        stored = self.stored[rows] if first else start
        low, high = self.policy.window(self.lm, stored, start, end, self.canvas_end[rows])
        candidates = self._masked(rows, start, end)
        columns = start[:, None] + torch.arange(self.block, device=self.lm.device)
        hidden = self._forward(rows, low, high, columns, candidates)
        tokens = torch.zeros_like(columns)
        confidence = torch.zeros(columns.shape, device=self.lm.device)
        picked, probability = self._predict(hidden, rows, columns, candidates)
        tokens[candidates], confidence[candidates] = picked, probability
        view = selectors.BlockView(
            confidence=confidence,
            candidates=candidates,
            quota=quota,
            strict=self.lm.is_block_causal,
            noise=lambda: self._uniform("select", rows, columns, 1)[..., 0],
            guaranteed=quota.clamp(min=1) if self.lm.is_block_causal else torch.ones_like(quota),
        )
        chosen = self.entry.function(view, **self.options)
        self._write(rows, columns, chosen, tokens, confidence)
        self._count(rows, low, high, candidates.sum(1), chosen.sum(1), first)

    def _forward(self, rows: Tensor, low: Tensor, high: Tensor, columns: Tensor, candidates: Tensor) -> Tensor:
        """Hidden states [N, d] at the candidates, row by row."""
        width = int((high - low).max())
        slots = low[:, None] + torch.arange(width, device=self.lm.device)
        real = slots < high[:, None]
        ids = self.ids[rows[:, None], slots.clamp(max=self.ids.shape[1] - 1)]
        ids = torch.where(real, ids, self.lm.pad_token_id)
        scored = torch.zeros_like(real)
        row, place = candidates.nonzero(as_tuple=True)
        scored[row, (columns - low[:, None])[row, place]] = True
        keys_end = int(high.max())
        keys = torch.arange(keys_end, device=self.lm.device)
        allowed = (keys < high[:, None])[:, None, :]
        if self.lm.is_block_causal:
            allowed = allowed & (slots[:, :, None] // self.block >= keys // self.block)
        elif bool((high == keys_end).all()):  # nothing to close: attention without a mask is faster
            return self.lm.hidden(ids, mask="full", position_ids=slots, positions=scored)
        if self.cache is None:
            return self.lm.hidden(ids, mask=allowed[:, None], position_ids=slots, positions=scored)
        self.cache.aim(rows, slots, keys_end)
        # Padded queries see slot 0 (always real), so that no row of the attention is empty.
        return self.lm.hidden(ids, mask=allowed[:, None], position_ids=slots, positions=scored, cache=self.cache)

    def _predict(self, hidden: Tensor, rows: Tensor, columns: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Token and its probability (temperature 1, no noise) at each candidate: [N], [N]."""
        tokens, confidences = [], []
        seeds = None
        if self.decoder.temperature > 0:
            seeds = self._position_seeds("token", rows, columns)[candidates]
        for index in range(0, len(hidden), HEAD_ROWS):
            logits = self.lm.head(hidden[index : index + HEAD_ROWS])
            # The mask id stays in the softmax, as published, but is never chosen.
            log_total = logits.logsumexp(-1)
            logits[:, self.lm.mask_token_id] = -torch.inf
            scores = logits
            if seeds is not None:
                u = uniform(seeds[index : index + HEAD_ROWS], logits.shape[1])
                scores = logits.double() / self.decoder.temperature - (-u.log()).log()
            token = scores.argmax(-1)
            tokens.append(token)
            confidences.append((logits.gather(1, token[:, None])[:, 0] - log_total).exp().float())
        return torch.cat(tokens), torch.cat(confidences)

    def _position_seeds(self, stream: str, rows: Tensor, columns: Tensor) -> Tensor:
        """One seed per (row, position, forward of the row): int64 [A, b]."""
        salt = stream_seed(stream)
        generated = columns - self.prompt[rows][:, None]
        return (self.seeds[rows] ^ salt)[:, None] + generated * 0x9E3779B1 + self.nfe[rows][:, None] * 0x85EBCA77C2B2

    def _uniform(self, stream: str, rows: Tensor, columns: Tensor, count: int) -> Tensor:
        return uniform(self._position_seeds(stream, rows, columns).reshape(-1), count).view(*columns.shape, count)

    def _write(self, rows: Tensor, columns: Tensor, chosen: Tensor, tokens: Tensor, confidence: Tensor) -> None:
        index = columns.clamp(max=self.ids.shape[1] - 1)
        pick = (rows[:, None].expand_as(index)[chosen], index[chosen])
        before = self.ids[rows[:, None], index]
        self.ids[pick] = commit.write(before, chosen, tokens)[chosen]
        self.step_map[pick] = self.nfe[rows][:, None].expand_as(index)[chosen]
        self.confidence[pick] = confidence[chosen]

    def _count(self, rows: Tensor, low: Tensor, high: Tensor, outputs: Tensor, committed: Tensor, first: bool) -> None:
        self.nfe[rows] += 1
        table = torch.stack([rows, low, high, outputs, committed], 1).tolist()
        for row, begin, stop, scored, done in table:
            cost = self.costs[row]
            fed = stop - begin
            cost.positions_fed += fed
            cost.kv_read += fed * stop
            cost.tokens_committed += done
            cost.flops += forward_flops(self.lm.dims, fed, stop, scored)
            kind = "denoise"
            if first and self.policy.keeps and fed > self.block:
                kind = "prefill+denoise" if begin == 0 and not self.kinds[row] else "store+denoise"
            self.kinds[row].append(kind)

    def _finish(self, alive: Tensor) -> Tensor:
        """Which rows are done after this round: bool [A]. Sets their wall time."""
        columns = torch.arange(self.ids.shape[1], device=self.lm.device)
        generated = (columns >= self.prompt[alive][:, None]) & (columns < self.decoded_to[alive][:, None])
        self.stopped[alive] = (torch.isin(self.ids[alive], self.stops) & generated).any(1)
        done = self.decoded_to[alive] >= self.canvas_end[alive]
        if self.decoder.early_stop:
            done = done | self.stopped[alive]
        wall = time.perf_counter() - self.began
        for row in alive[done].tolist():
            self.costs[row].wall_s = wall
        return done

    def _generation(self, row: int) -> Generation:
        begin, end = int(self.prompt[row]), int(self.decoded_to[row])
        token_ids = self.ids[row, begin:end].tolist()
        stop = next((i for i, token in enumerate(token_ids) if token in self.lm.stop_token_ids), len(token_ids))
        cost = self.costs[row]
        cost.tokens_text = stop
        cost.nfe = cost.row_forwards = int(self.nfe[row])
        return Generation(
            token_ids=token_ids,
            text_ids=token_ids[:stop],
            step_map=self.step_map[row, begin:end].tolist(),
            confidence=[round(value, 6) for value in self.confidence[row, begin:end].tolist()],
            block_starts=self.block_starts[row],
            kinds=self.kinds[row],
            finish_reason="stop" if bool(self.stopped[row]) else "length",
            cost=cost,
        )
