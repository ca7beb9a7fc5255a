"""The decoding engine: any scheduler, selector, cache and editor, rows independent of each other.

Slots hold the rows that are being decoded. In each tick every row takes one forward: rows whose windows are of like
width share a network call. What a row feeds, commits and costs depends on the row alone: every quantity is indexed by
slot. A row that is finished leaves at once and its slot takes the next prompt, so a queue keeps the batch full.

The first forward of a block feeds what the cache does not hold yet, so that prefill and the storing of the finished
block are fused with the first denoising step. No forward follows a finished block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence

import torch
from dare_bench.dare.decoding import caches, editors, fit, request, schedulers, selectors, weightings
from dare_bench.dare.decoding.commits import Committer
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.draws import CounterDraws, Draws, TorchDraws
from dare_bench.dare.decoding.feed import Feeder
from dare_bench.dare.decoding.generation import Generation
from dare_bench.dare.decoding.look import Look
from dare_bench.dare.decoding.plan import KIND, Call, Planner
from dare_bench.dare.decoding.predict import Predictor
from dare_bench.dare.decoding.slots import Slots
from dare_bench.dare.families.base import DiffusionLM
from torch import Tensor

OnFinish = Callable[[int, Generation], None]


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
        batch_size: rows decoded together; prompts of like length share a forward, the longest come first (the largest
            need of memory shows at once). Never changes a result.
        on_finish: called with (index, generation) when a row is done.

    Returns:
        Generations in the order of `prompts`.

    Raises:
        ValueError: for an empty prompt, a missing gen_length, or settings that do not fit the model.
    """
    request.check(prompts, decoder, seeds)
    if not prompts:
        return []
    session = Session(lm, decoder, min(batch_size, len(prompts)), longest=max(len(prompt) for prompt in prompts))
    for index in sorted(range(len(prompts)), key=lambda index: (-len(prompts[index]), index)):
        session.add(prompts[index], seeds[index], index)
    found: dict[int, Generation] = {}
    while session.busy:
        for index, generation in session.step():
            found[index] = generation
            if on_finish is not None:
                on_finish(index, generation)
    return [found[index] for index in range(len(prompts))]


class Session:
    """A stream of prompts through a fixed number of slots, under one decoder.

    Args:
        lm: model in evaluation mode.
        decoder: settings; `gen_length` must be set.
        slots: rows decoded together.
        longest: longest prompt expected, in tokens; longer ones make the buffers grow.

    Raises:
        ValueError, UnknownName: for settings that do not fit the model.
    """

    def __init__(self, lm: DiffusionLM, decoder: DecoderConfig, slots: int, *, longest: int = 0) -> None:
        request.check([], decoder, [])
        self.lm, self.decoder = lm, decoder
        entry, options = selectors.resolve(decoder.selector, decoder.selector_options)
        schedule, schedule_options = schedulers.resolve(decoder.scheduler, decoder.scheduler_options)
        self.policy = caches.policy(decoder.cache, lm, decoder.cache_options)
        _, edit = editors.resolve(decoder.editor, decoder.editor_options)
        _check_fit(lm, decoder, slots)
        size = decoder.block_length or lm.block_length
        layout = None
        if schedule.layout is not None:
            layout = schedule.layout(int(decoder.gen_length or 0), size, **schedule_options)
        self.slots = Slots(lm, decoder, slots, layout)
        if longest:
            self.slots.grow(self.slots.canvas_of(longest))
        self.weighting = None
        if decoder.weighting != "none":
            self.weighting = weightings.make(
                decoder.weighting, decoder.weighting_options, slots, self.slots.widest, lm.vocab_size, lm.device
            )
        self.feeder = Feeder(self.slots, keeps=self.policy.keeps)
        self.planner = Planner(lm, self.policy, decoder.compat)
        predictor = Predictor(lm, decoder, measure=entry.measure, needs_entropy=entry.needs_entropy)
        self.committer = Committer(
            self.slots, predictor, entry, options, schedule, schedule_options, edit, self.weighting, self._draws
        )
        self.loud = torch.zeros(slots, dtype=torch.bool, device=lm.device)  # no forward is silent
        self.counters = CounterDraws(self.slots.seeds, self.slots.prompt)
        self.published: TorchDraws | None = None
        self.queue: deque[tuple[Hashable, Sequence[int], int]] = deque()

    def add(self, prompt: Sequence[int], seed: int, key: Hashable) -> None:
        """Queue a prompt.

        Args:
            prompt: token ids, at least one.
            seed: of its draws.
            key: comes back with the generation.
        """
        if not len(prompt):
            raise ValueError("the prompt is empty; a prompt needs at least one token")
        self.queue.append((key, prompt, seed))

    def cancel(self, key: Hashable) -> bool:
        """Drop a prompt, queued or running; whether it was there."""
        before = len(self.queue)
        self.queue = deque(item for item in self.queue if item[0] != key)
        if len(self.queue) < before:
            return True
        for slot, held in enumerate(self.slots.keys):
            if held == key and self.slots.places[slot] is not None:
                self.slots.free(slot)
                return True
        return False

    @property
    def busy(self) -> bool:
        """Whether anything is queued or running."""
        return bool(self.queue) or self.slots.running > 0

    @torch.inference_mode()
    def step(self) -> list[tuple[Hashable, Generation]]:
        """One forward of every running row; free slots are filled first.

        Returns:
            (key, generation) of the rows that are done.
        """
        self._refill()
        if not self.slots.running:
            return []
        call, together = self.planner(self.slots.places)
        columns, inside, done = self._forward(call, together)
        return self._close(call, columns, inside, done)

    def _refill(self) -> None:
        if not self.queue:
            return
        free = [slot for slot, place in enumerate(self.slots.places) if place is None][: len(self.queue)]
        if not free:
            return
        for slot in free:
            key, prompt, seed = self.queue.popleft()
            self.slots.fill(slot, key, prompt, seed)
            if "torch_rng" in self.decoder.compat:
                per_mask = self.decoder.selector == "origin"
                self.published = TorchDraws(seed, self.slots.canvas_of(len(prompt)), per_mask=per_mask)
        self._open(free)

    def _open(self, rows: list[int]) -> None:
        """Move some rows to their next block."""
        self.slots.open_block(rows)
        if self.weighting is not None:
            self.weighting.reset(torch.tensor(rows, device=self.slots.device))

    def _draws(self) -> Draws:
        return self.published or self.counters

    def _forward(self, call: Call, together: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Feed some rows, as many per network call as `together` says; commit, count.

        Returns:
            Columns of the blocks [A, b], which of them belong to their row's text [A, b], and whose blocks are settled [A].
        """
        slots, rows, wastes = self.slots, call.rows, self.committer.wastes
        now = slots.at(rows)
        columns, inside = slots.block_columns(now)
        silent = call.kinds >= KIND["prefill"] if wastes else self.loud[: len(rows)]
        allowed = inside & ~silent[:, None] if wastes else inside
        tokens = slots.token(rows, columns, within=slots.whole)
        masked = (tokens == self.lm.mask_token_id) & allowed
        editable = self.committer.editable(columns, tokens, allowed, now)
        scored = masked if editable is None else masked | editable
        row, place = scored.nonzero(as_tuple=True)
        column, outputs = columns[row, place], scored.sum(1)
        hidden, blank = self._feed(call, together, (row, column), outputs)
        look = Look(rows, now, columns, tokens, masked, editable, (row, place, column), call.full, silent)
        step, committed, done = self.committer(look, hidden, blank)
        moved = torch.stack([step, committed, now.nfe + 1, now.outputs + outputs])
        slots.moving.index_copy_(1, rows, moved)
        self.planner.after(call.spans, slots.places)
        if wastes:
            slots.extra[rows] -= (call.kinds > KIND["prefill"]).long()
            slots.look_at(rows)
        return columns, inside, done

    def _feed(
        self, call: Call, together: list[int], wanted: tuple[Tensor, Tensor], outputs: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states at the wanted places, `outputs` of each row, in one or more network calls."""
        if len(together) == 1:
            return self.feeder(call, wanted)
        counts = outputs.tolist()
        found, begin, first = [], 0, 0
        for size in together:
            end = begin + size
            last = first + sum(counts[begin:end])
            found.append(self.feeder(call.part(begin, end), (wanted[0][first:last] - begin, wanted[1][first:last])))
            begin, first = end, last
        hidden, blank = zip(*found, strict=True)
        return torch.cat(hidden), torch.cat(blank) if self.feeder.guided else None

    def _close(self, call: Call, columns: Tensor, inside: Tensor, done: Tensor) -> list[tuple[Hashable, Generation]]:
        """Move rows whose block is done to their next block, and hand out those that are finished."""
        slots, early = self.slots, self.decoder.early_stop
        cut = slots.cut[call.rows].tolist() if early == "now" else [False] * len(call.spans)
        which = []
        for index, is_done in enumerate(done.tolist()):
            waits = self.committer.wastes and slots.place(call.spans[index].slot).extra
            if cut[index] or (is_done and not waits):
                which.append(index)
        if not which:
            return []
        stopped = [False] * len(call.spans)
        if early:  # earlier blocks hold no stop token: their row would be gone
            stopped = (self.committer.stops[slots.token(call.rows, columns)] & inside).any(1).tolist()
        going, gone = [], []
        for index in which:
            slot = call.spans[index].slot
            place = slots.place(slot)
            finished = place.end >= place.canvas or cut[index] or stopped[index]
            (gone if finished else going).append(slot)
        if going:
            self._open(going)
        return [(slots.keys[slot], slots.take(slot)) for slot in gone]


def _check_fit(lm: DiffusionLM, decoder: DecoderConfig, slots: int) -> None:
    if lm.mask_token_id < 0:
        raise ValueError(f"family {lm.family.name!r} has no mask token: this engine decodes masked diffusion models")
    for problem in fit.problems(decoder, lm.family.attention, lm.family.shift):
        raise ValueError(f"{problem.said} (family {lm.family.name}); {problem.field}: {problem.allowed}")
    if "torch_rng" in decoder.compat and slots != 1:
        raise ValueError("compat torch_rng draws for one row only: use batch_size=1")
