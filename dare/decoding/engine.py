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
from types import SimpleNamespace

import torch
from dare_bench.dare.decoding import caches, editors, fit, request, schedulers, selectors, weightings
from dare_bench.dare.decoding.commits import Committer, Look
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.draws import CounterDraws, Draws, TorchDraws
from dare_bench.dare.decoding.feed import Feeder, Span, call_positions, groups, most_positions
from dare_bench.dare.decoding.generation import Generation
from dare_bench.dare.decoding.predict import Predictor
from dare_bench.dare.decoding.slots import KINDS, Slots
from dare_bench.dare.families.base import DiffusionLM
from torch import Tensor

OnFinish = Callable[[int, Generation], None]
_KIND = {name: code for code, name in enumerate(KINDS)}


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
        self.bounds = call_positions(lm), most_positions(lm)
        predictor = Predictor(lm, decoder, measure=entry.measure, needs_entropy=entry.needs_entropy)
        self.committer = Committer(
            self.slots, predictor, entry, options, schedule, schedule_options, edit, self.weighting, self._draws
        )
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
            if held == key and bool(self.slots.active[slot]):
                self.slots.active[slot], self.slots.keys[slot] = False, None
                return True
        return False

    @property
    def busy(self) -> bool:
        """Whether anything is queued or running."""
        return bool(self.queue) or bool(self.slots.active.any())

    @torch.inference_mode()
    def step(self) -> list[tuple[Hashable, Generation]]:
        """One forward of every running row; free slots are filled first.

        Returns:
            (key, generation) of the rows that are done.
        """
        self._refill()
        rows = self._running()
        if not len(rows):
            return []
        now = self.slots.at(rows)
        window, kinds = self._windows(now)
        feeds = torch.stack([window.low, window.high, window.keys, rows, kinds])
        spans = list(zip(*feeds[:4].tolist(), strict=True))
        together = groups([high - low for low, high, *_ in spans], *self.bounds)
        order = [index for group in together for index in group]
        if order != list(range(len(order))):  # rows that share a network call lie side by side
            pick, spans = torch.tensor(order, device=rows.device), [spans[index] for index in order]
            low, high, keys, rows, kinds = feeds.index_select(1, pick).unbind()
            window = caches.Window(low, high, keys, window.full[pick])
            now = self.slots.at(rows)
        columns, inside, done = self._forward(rows, now, window, kinds, spans, [len(group) for group in together])
        return self._close(rows, columns, inside, done)

    def _running(self) -> Tensor:
        """Slots at work. Those that begin a block come last: they feed more, so that most steps need no other order."""
        slots = self.slots
        if not self.policy.keeps or slots.count == 1:
            return slots.active.nonzero()[:, 0]
        order = torch.where(slots.fresh, 1, 2) * slots.active
        return order.sort(descending=True, stable=True).indices[: int(slots.active.sum())]

    def _refill(self) -> None:
        if not self.queue:
            return
        free = (~self.slots.active).nonzero()[: len(self.queue), 0]
        if not len(free):
            return
        for slot in free.tolist():
            key, prompt, seed = self.queue.popleft()
            self.slots.fill(slot, key, prompt, seed)
            if "torch_rng" in self.decoder.compat:
                per_mask = self.decoder.selector == "origin"
                self.published = TorchDraws(seed, self.slots.canvas_of(len(prompt)), per_mask=per_mask)
        self._open(free)

    def _open(self, rows: Tensor) -> None:
        """Move some rows to their next block."""
        self.slots.open_block(rows)
        if self.weighting is not None:
            self.weighting.reset(rows)

    def _draws(self) -> Draws:
        return self.published or self.counters

    def _windows(self, now: SimpleNamespace) -> tuple[caches.Window, Tensor]:
        """What each row feeds now, and the kind of its forward."""
        place = caches.Place(
            now.start, now.end, now.canvas, now.stored, now.fresh, now.block, now.nfe, now.built
        )  # fmt: skip
        lead = 0 if "dream_window" in self.decoder.compat else self.lm.family.shift
        window = self.policy.window(place, lead, **self.policy.options)
        kinds = torch.zeros_like(now.start)  # _KIND["denoise"]
        if self.policy.name == "block":
            behind = place.fresh & (place.stored < place.start)
            is_first = place.nfe == 0
            kinds = torch.where(is_first, _KIND["prefill+denoise"], _KIND["store+denoise"]) * behind
            if "separate_store" in self.decoder.compat:
                # Store what is final in a forward of its own; the block's first denoising forward comes after it.
                window = caches.Window(
                    torch.where(behind, place.stored, place.start),
                    torch.where(behind, place.start, place.end),
                    torch.where(behind, place.start, place.end),
                    window.full,
                )
                kinds[behind] = _KIND["prefill"]
        elif self.policy.keeps:
            kinds = window.full * _KIND["refresh+denoise"]
        if self.committer.wastes:
            kinds[now.extra > 0] = _KIND["store"] if "separate_store" in self.decoder.compat else _KIND["wasted"]
        return window, kinds

    def _forward(
        self,
        rows: Tensor,
        now: SimpleNamespace,
        window: caches.Window,
        kinds: Tensor,
        spans: list[Span],
        together: list[int],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Feed some rows, as many per network call as `together` says; commit, count.

        Returns:
            Columns of the blocks [A, b], which of them belong to their row's text [A, b], and whose blocks are settled [A].
        """
        slots = self.slots
        columns, block = slots.block_columns(now)
        inside = block
        silent = kinds >= _KIND["prefill"]
        if self.committer.wastes:
            inside = inside & ~silent[:, None]
        tokens = slots.token(rows, columns)
        masked = (tokens == self.lm.mask_token_id) & inside
        editable = self.committer.editable(columns, tokens, inside, now)
        scored = masked if editable is None else masked | editable
        row, place = scored.nonzero(as_tuple=True)
        column, outputs = columns[row, place], scored.sum(1)
        hidden, blank = self._feed(rows, window, spans, together, (row, column), outputs)
        if self.policy.options:
            slots.built[rows] = now.built | (window.full & (now.nfe >= self.policy.options["warmup_steps"]))
        slots.note(rows, now.nfe, kinds)
        look = Look(rows, now, columns, tokens, masked, editable, (row, place, column), window.full, silent)
        step, committed, done = self.committer(look, hidden, blank)
        fed = window.high - window.low
        costs = (now.nfe + 1, now.fed + fed, torch.addcmul(now.read, fed, window.keys), now.outputs + outputs)
        slots.moving[:, rows] = torch.stack([step, committed, *costs])
        if self.committer.wastes:
            slots.stored[rows] = torch.where(kinds == _KIND["prefill"], slots.start[rows], slots.stored[rows])
            slots.stored[rows] = torch.where(kinds == _KIND["store"], slots.end[rows], slots.stored[rows])
            slots.extra[rows] -= (kinds > _KIND["prefill"]).long()
        return columns, block, done

    def _feed(
        self,
        rows: Tensor,
        window: caches.Window,
        spans: list[Span],
        together: list[int],
        wanted: tuple[Tensor, Tensor],
        outputs: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states at the wanted places, `outputs` of each row, in one or more network calls."""
        if len(together) == 1:
            return self.feeder(rows, window, spans, wanted)
        counts = outputs.tolist()
        found, begin, first = [], 0, 0
        for size in together:
            end = begin + size
            last = first + sum(counts[begin:end])
            part = caches.Window(*(each[begin:end] for each in vars(window).values()))
            places = (wanted[0][first:last] - begin, wanted[1][first:last])
            found.append(self.feeder(rows[begin:end], part, spans[begin:end], places))
            begin, first = end, last
        hidden, blank = zip(*found, strict=True)
        return torch.cat(hidden), torch.cat(blank) if self.feeder.guided else None

    def _close(self, rows: Tensor, columns: Tensor, inside: Tensor, done: Tensor) -> list[tuple[Hashable, Generation]]:
        """Move rows whose block is done to their next block, and hand out those that are finished."""
        slots = self.slots
        if self.committer.wastes:
            done = done & (slots.extra[rows] == 0)
        if self.decoder.early_stop == "now":
            done = done | slots.cut[rows]
        which = done.nonzero()[:, 0]
        if not len(which):
            return []
        ended = rows[which]
        finished = slots.end[ended] >= slots.canvas[ended]
        if self.decoder.early_stop:  # earlier blocks hold no stop token: their row would be gone
            written = slots.token(ended, columns[which])
            finished |= (self.committer.stops[written] & inside[which]).any(1)
        if self.decoder.early_stop == "now":
            finished |= slots.cut[ended]
        going = ended[~finished]
        if len(going):
            self._open(going)
        return [(slots.keys[slot], slots.take(slot)) for slot in ended[finished].tolist()]


def _check_fit(lm: DiffusionLM, decoder: DecoderConfig, slots: int) -> None:
    if lm.mask_token_id < 0:
        raise ValueError(f"family {lm.family.name!r} has no mask token: this engine decodes masked diffusion models")
    for problem in fit.problems(decoder, lm.family.attention, lm.family.shift):
        raise ValueError(f"{problem.said} (family {lm.family.name}); {problem.field}: {problem.allowed}")
    if "torch_rng" in decoder.compat and slots != 1:
        raise ValueError("compat torch_rng draws for one row only: use batch_size=1")
