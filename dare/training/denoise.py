"""A denoiser with a fixed number of steps: rollouts that need every state on the way, or that stop and branch.

The decoding engine answers prompts and keeps what was committed when. Some algorithms train on more: all guesses of every
step, or several continuations of one state. Here all rows take the same steps over the whole canvas, with the engine's
schedulers, selectors, proposals and draws. A row depends on its prompt and seed alone, never on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from dare_bench.dare.decoding import request, schedulers, selectors
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.draws import CounterDraws
from dare_bench.dare.decoding.generation import NEVER, Generation
from dare_bench.dare.decoding.predict import Predictor, Proposal
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed
from dare_bench.dare.training.canvases import Canvas, Guess, empty, records
from dare_bench.dare.training.denoise_settings import problems
from dare_bench.kernels import commit
from torch import Tensor

OnStep = Callable[[int, Guess], None]


def check(decoder: DecoderConfig, *, remask: bool = False) -> None:
    """Refuse decoder settings that these rollouts do not honour.

    Args:
        decoder: of the rollout.
        remask: committed tokens may be masked again.

    Raises:
        ValueError: naming the field, its value and what is allowed.
    """
    for field, fits in problems(decoder, remask=remask).items():
        listed = ", ".join(map(repr, fits))
        why = "this rollout denoises whole canvases in a fixed number of steps"
        if remask and field == "selector":
            why = "remasking compares confidences of several steps"
        raise ValueError(f"decoder.{field}: {getattr(decoder, field)!r}; allowed here: {listed} ({why})")


class Denoiser:
    """Takes rows through the steps of a decoder, as many at a time as one likes.

    Args:
        lm: model in evaluation mode, full attention.
        decoder: `denoise_settings.HONOURED` fields count, see `check`; `gen_length` must be set.
        remask: running-confidence remasking: a step proposes tokens for all masks of the block, every place keeps the
            highest measure it has had, and the places with the lowest are masked (again), as many as the schedule says.
        everywhere: guess at every masked place, in later blocks too; else in the block of the step alone.

    Raises:
        ValueError: for settings that are not honoured, or a model without full attention.

    Source:
        ML-GSAI/LLaDA `generate.py`; autonomousvision/mdpo `src/llada/generate.py` (remasking).
    """

    def __init__(
        self, lm: DiffusionLM, decoder: DecoderConfig, *, remask: bool = False, everywhere: bool = False
    ) -> None:
        request.check([], decoder, [])
        check(decoder, remask=remask)
        if lm.is_block_causal:
            raise ValueError(f"family: {lm.family.name!r}; allowed here: families with full attention")
        self.lm, self.remask, self.everywhere = lm, remask, everywhere
        self.gen_length = int(decoder.gen_length or 0)
        size = decoder.block_length or lm.block_length
        #: (first place behind the prompt, size, steps) of each block; a cut block takes no more steps than places.
        self.blocks = []
        for start in range(0, self.gen_length, size):
            width = min(size, self.gen_length - start)
            self.blocks.append((start, width, min(decoder.steps_per_block or width, width)))
        #: Block and local step of every step.
        self.order = [(block, step) for block, (_, _, steps) in enumerate(self.blocks) for step in range(steps)]
        self.selector, self.options = selectors.resolve(decoder.selector, decoder.selector_options)
        self.schedule, self.schedule_options = schedulers.resolve(decoder.scheduler, decoder.scheduler_options)
        self.temperature = decoder.temperature
        self.predictor = Predictor(
            lm, decoder, measure=self.selector.measure, needs_entropy=self.selector.needs_entropy
        )

    @property
    def steps(self) -> int:
        """Steps from an empty canvas to a full one."""
        return len(self.order)

    def check_levels(self, levels: int) -> None:
        """Refuse fewer steps than the levels of a tree.

        Raises:
            ValueError: naming field, value and what is allowed.
        """
        if self.steps < levels:
            raise ValueError(
                f"decoder.steps_per_block: {self.steps} steps in all for {self.gen_length} tokens; allowed: at least one "
                f"step for each of the tree's {levels} levels"
            )

    def start(self, prompts: Sequence[Sequence[int]]) -> Canvas:
        """Empty canvases behind prompts, padded at the right to the longest."""
        return empty(self.lm, prompts, self.gen_length)

    @torch.no_grad()
    def run(self, canvas: Canvas, seeds: Sequence[int], begin: int, end: int, on_step: OnStep | None = None) -> Canvas:
        """Take rows through steps begin ... end - 1.

        Args:
            canvas: rows after `begin` steps; not changed.
            seeds: one per row; equal states with unlike seeds go apart.
            begin, end: steps.
            on_step: called with (step, guess) before its tokens are written.
        """
        canvas = canvas.pick(torch.arange(len(canvas.ids)))
        rows = torch.tensor([stream_seed(seed, "denoise") for seed in seeds], device=canvas.ids.device)
        draws = CounterDraws(rows, canvas.prompt)
        for step in range(begin, end):
            self._step(canvas, draws, step, on_step)
        return canvas

    def _step(self, canvas: Canvas, draws: CounterDraws, step: int, on_step: OnStep | None) -> None:
        device, count = canvas.ids.device, len(canvas.ids)
        start, size, _ = self.blocks[self.order[step][0]]
        columns = canvas.prompt[:, None] + start + torch.arange(size, device=device)
        masked = canvas.ids == self.lm.mask_token_id
        # The prompt may hold the mask's id as text.
        masked &= canvas.real & (torch.arange(masked.shape[1], device=device) >= canvas.prompt[:, None])
        candidates = masked.gather(1, columns)
        scored = masked if self.everywhere else torch.zeros_like(masked).scatter(1, columns, candidates)
        where = scored.nonzero(as_tuple=True)
        now = torch.full((count,), step, device=device)
        proposal = self._propose(canvas, draws, where, scored, now)
        plain = proposal.probability if proposal.plain is None else proposal.plain
        guesses = canvas.ids.index_put(where, proposal.token)
        confidence = torch.zeros_like(canvas.confidence).index_put(where, plain)
        if on_step is not None:
            on_step(step, Guess(canvas.ids.clone(), guesses, confidence))
        kind = {"margin": proposal.margin, "probability": proposal.probability, "entropy": None}[self.selector.measure]
        found = -proposal.entropy if kind is None and proposal.entropy is not None else kind
        measure = torch.zeros_like(canvas.confidence).index_put(where, found)  # type: ignore[arg-type]
        view = self._view(candidates, measure.gather(1, columns), columns, step, draws, now)
        view.probability = confidence.gather(1, columns)
        if self.remask:
            self._remask(canvas, columns, view, guesses, confidence, step)
        else:
            chosen = self.selector.function(view, **self.options)
            self._write(canvas, columns, chosen, guesses, confidence, step)
        canvas.nfe += 1
        canvas.outputs += scored.sum(1)

    def _propose(
        self, canvas: Canvas, draws: CounterDraws, where: tuple[Tensor, Tensor], scored: Tensor, now: Tensor
    ) -> Proposal:
        real = None if bool(canvas.real.all()) else canvas.real
        places = torch.arange(scored.shape[1], device=scored.device).expand(scored.shape)
        hidden = self.lm.hidden(canvas.ids, attention_mask=real, position_ids=places, positions=where)
        uniforms = None
        if self.temperature > 0:
            rows = torch.arange(len(canvas.ids), device=scored.device)
            uniforms = draws.tokens(rows, places, scored, now, self.lm.vocab_size)
        return self.predictor(hidden, None, None, None, uniforms)

    def _view(
        self, candidates: Tensor, measure: Tensor, columns: Tensor, step: int, draws: CounterDraws, now: Tensor
    ) -> selectors.BlockView:
        block, local = self.order[step]
        _, size, steps = self.blocks[block]
        rows = torch.arange(len(candidates), device=candidates.device)

        def whole(value: int) -> Tensor:
            return torch.full_like(rows, value)

        masks = candidates.sum(1)
        quota = self.schedule.count(
            schedulers.ScheduleState(masks, whole(size), whole(local), whole(steps), whole(block), size - masks),
            **self.schedule_options,
        )
        return selectors.BlockView(
            confidence=measure,
            candidates=candidates,
            quota=quota,
            guaranteed=torch.zeros_like(quota),
            step=whole(local),
            steps=whole(steps),
            uniform=lambda: draws.positions(rows, columns, candidates, now),
            draw=lambda weights, counts: draws.subset(weights, counts, rows, columns, now),
        )

    def _remask(
        self, canvas: Canvas, columns: Tensor, view: selectors.BlockView, guesses: Tensor, confidence: Tensor, step: int
    ) -> None:
        best = canvas.best.gather(1, columns)
        best = torch.where(view.candidates, torch.maximum(best, view.confidence), best)
        canvas.best.scatter_(1, columns, best)
        kept = commit.select_top(best, torch.ones_like(view.candidates), (~view.candidates).sum(1) + view.quota)
        self._write(canvas, columns, kept & view.candidates, guesses, confidence, step)
        for name, value in (("ids", self.lm.mask_token_id), ("step_map", NEVER), ("confidence", 0.0)):
            held = getattr(canvas, name)
            held.scatter_(1, columns, torch.where(kept, held.gather(1, columns), value))

    @staticmethod
    def _write(canvas: Canvas, columns: Tensor, chosen: Tensor, guesses: Tensor, confidence: Tensor, step: int) -> None:
        steps = torch.full_like(canvas.step_map, step)
        for held, new in ((canvas.ids, guesses), (canvas.step_map, steps), (canvas.confidence, confidence)):
            held.scatter_(1, columns, torch.where(chosen, new.gather(1, columns), held.gather(1, columns)))

    def take(self, canvas: Canvas) -> list[Generation]:
        """Full canvases as the records that the engine would give. A row's cost is that of its way from the prompt."""
        return records(self.lm, canvas, [start for start, _, _ in self.blocks], self.gen_length)
