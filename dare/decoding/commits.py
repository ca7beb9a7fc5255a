"""What happens between two forwards: propose, weigh, select, edit, write, and decide whether the block is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from dare_bench.dare.decoding import schedulers, selectors
from dare_bench.dare.decoding.draws import Draws
from dare_bench.dare.decoding.generation import FILLED
from dare_bench.dare.decoding.predict import Predictor, Proposal
from dare_bench.dare.decoding.slots import Slots
from torch import Tensor


class Committer:
    """Applies a decoder's rules to the slots after a forward.

    Args:
        slots: rows.
        predictor: hidden states to proposals.
        selector, options: which masked positions are committed.
        schedule, schedule_options: how many.
        edit: options of the editor; empty = committed tokens stay.
        weighting: object with `adjust` and `weigh`, or None.
        draws: gives the source of random draws.
    """

    def __init__(
        self,
        slots: Slots,
        predictor: Predictor,
        selector: selectors.SelectorEntry,
        options: Mapping[str, Any],
        schedule: schedulers.SchedulerEntry,
        schedule_options: Mapping[str, Any],
        edit: Mapping[str, Any],
        weighting: Any,
        draws: Callable[[], Draws],
    ) -> None:
        self.slots, self.lm, self.decoder, self.predictor = slots, slots.lm, slots.decoder, predictor
        self.selector, self.options = selector, dict(options)
        self.schedule, self.schedule_options = schedule, dict(schedule_options)
        self.edit, self.weighting, self.draws = dict(edit), weighting, draws
        self.stops = torch.tensor(sorted(self.lm.stop_token_ids), device=slots.device)
        self.compat = self.decoder.compat
        self._settled = torch.zeros(slots.count, dtype=torch.bool, device=slots.device)

    def editable(self, columns: Tensor, tokens: Tensor, inside: Tensor, rows: Tensor) -> Tensor | None:
        """Committed positions of the block that may be rewritten: bool [A, b], or None without an editor."""
        if "overwrite" in self.compat:  # the published code reaches the whole block, the prompt's part too
            start, end = self.slots.start[rows][:, None], self.slots.end[rows][:, None]
            whole = (columns >= start) & (columns < end) & inside.any(1, keepdim=True)
            return whole & (tokens != self.lm.mask_token_id)
        if not self.edit:
            return None
        return inside & (tokens != self.lm.mask_token_id) & (columns >= self.slots.start[rows][:, None])

    def __call__(
        self,
        rows: Tensor,
        columns: Tensor,
        tokens: Tensor,
        masked: Tensor,
        editable: Tensor | None,
        hidden: Tensor,
        blank: Tensor | None,
        full: Tensor,
        silent: Tensor,
    ) -> None:
        """Commit after a forward.

        Args:
            rows: int64 [A], slots.
            columns: int64 [A, b], canvas positions.
            tokens: int64 [A, b], what the forward saw there.
            masked: bool [A, b], candidates.
            editable: bool [A, b] or None.
            hidden, blank: [N, d], states at masked and editable positions; of the rows without prompt, or None.
            full: bool [A], the forward fed the whole canvas.
            silent: bool [A], forwards that commit nothing.
        """
        slots = self.slots
        scored = masked if editable is None else masked | editable
        proposal, measure = self._propose(rows, columns, scored, hidden, blank)
        view = self._view(rows, columns, masked, proposal, measure)
        chosen = self.selector.function(view, **self.options)
        if "dream_window" in self.compat:
            # The refreshing forward is the only one that sees the block's first position.
            first = columns == slots.start[rows][:, None]
            chosen = torch.where(full[:, None], first & masked, chosen)
        overwritten = None
        if "overwrite" in self.compat:
            overwritten = self._uncapped(view, chosen, editable, silent)
        self._write(rows, columns, tokens, chosen, overwritten, proposal)
        rewritten = None
        if editable is not None and self.edit:
            sure = proposal["probability"] > self.edit["threshold"]
            rewritten = editable & sure & (proposal["token"] != tokens)
            self._rewrite(rows, columns, tokens, rewritten, proposal)
        slots.committed[rows] += chosen.sum(1)
        if self.decoder.early_stop == "fill":
            self._fill(rows, ~silent & (~full | (slots.decoder.cache in ("none", "auto"))))
        self._after(rows, masked, rewritten, silent)

    def _propose(
        self, rows: Tensor, columns: Tensor, scored: Tensor, hidden: Tensor, blank: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Proposals on the grid [A, b], and the measure that the selector sorts by."""
        slots = self.slots
        uniforms = None
        if self.decoder.temperature > 0:
            uniforms = self.draws().tokens(rows, columns, scored, slots.nfe[rows], self.lm.vocab_size)
        row, place = scored.nonzero(as_tuple=True)
        offsets = (slots.start[rows] - slots.view[rows])[row]
        where = (rows[row], place - offsets)
        flat = self.predictor(hidden, blank, self.weighting, where, uniforms)
        grid: dict[str, Tensor] = {}
        for name in ("token", "probability", "margin", "entropy", "plain"):
            values = getattr(flat, name)
            if values is not None:
                grid[name] = values.new_zeros(columns.shape)
                grid[name][scored] = values
        measure = {"probability": "probability", "margin": "margin", "entropy": "entropy"}[self.selector.measure]
        found = -grid["entropy"] if measure == "entropy" else grid[measure]
        if self.weighting is not None:
            is_eos = grid["token"] == self.lm.eos_token_id
            found = self.weighting.weigh(found, grid["token"], is_eos, slots.step[rows], self._steps(rows))
        return grid, found

    def _steps(self, rows: Tensor) -> Tensor:
        return self.slots.steps[rows]

    def _view(
        self, rows: Tensor, columns: Tensor, masked: Tensor, proposal: dict[str, Tensor], measure: Tensor
    ) -> selectors.BlockView:
        slots = self.slots
        is_block = self.lm.is_block_causal
        state = schedulers.ScheduleState(
            masks_now=masked.sum(1),
            masks_at_start=torch.full_like(rows, slots.size) if is_block else slots.masks[rows],
            step=slots.step[rows],
            steps=slots.steps[rows],
            block=slots.block[rows],
            committed=slots.committed[rows],
        )
        quota = self.schedule.count(state, **self.schedule_options)
        nfe, draws = slots.nfe[rows], self.draws()
        return selectors.BlockView(
            confidence=measure,
            candidates=masked,
            quota=quota,
            guaranteed=quota.clamp(min=1) if is_block else torch.ones_like(quota),
            strict=is_block,
            step=slots.step[rows],
            steps=slots.steps[rows],
            probability=proposal["probability"],
            entropy=proposal.get("entropy"),
            uniform=lambda: draws.positions(rows, columns, masked, nfe),
            draw=lambda weights, counts: draws.subset(weights, counts, rows, columns, nfe),
            compat=self.compat,
        )

    def _uncapped(
        self, view: selectors.BlockView, chosen: Tensor, others: Tensor | None, silent: Tensor
    ) -> Tensor | None:
        """SDAR's published count is not capped at the masks left: it reaches tokens that are committed already."""
        if others is None:
            return None
        found = torch.zeros_like(chosen)
        confidence = view.confidence.masked_fill(~view.candidates, -torch.inf)
        for row in ((chosen.sum(1) < view.quota) & ~silent).nonzero()[:, 0].tolist():
            # Which of the equal (infinitely low) values it reaches is decided by `topk` itself.
            found[row, confidence[row].topk(min(int(view.quota[row]), chosen.shape[1])).indices] = True
        return found & others

    def _write(
        self,
        rows: Tensor,
        columns: Tensor,
        tokens: Tensor,
        chosen: Tensor,
        overwritten: Tensor | None,
        proposal: dict[str, Tensor],
    ) -> None:
        slots = self.slots
        row, place = chosen.nonzero(as_tuple=True)
        at = (rows[row], columns[row, place])
        new = proposal["token"][row, place]
        slots.ids[at] = new
        # Under `mask_predicted` the mask id may be chosen: the position then stays masked.
        slots.step_map[at] = torch.where(new == self.lm.mask_token_id, slots.step_map[at], slots.nfe[rows][row])
        slots.confidence[at] = proposal.get("plain", proposal["probability"])[row, place]
        if overwritten is not None and bool(overwritten.any()):
            self._rewrite(rows, columns, tokens, overwritten, proposal)

    def _rewrite(
        self, rows: Tensor, columns: Tensor, tokens: Tensor, rewritten: Tensor, proposal: dict[str, Tensor]
    ) -> None:
        slots = self.slots
        row, place = rewritten.nonzero(as_tuple=True)
        if not len(row):
            return
        at = (rows[row], columns[row, place])
        old, new = tokens[row, place], proposal["token"][row, place]
        slots.ids[at] = new
        slots.confidence[at] = proposal.get("plain", proposal["probability"])[row, place]
        table = torch.stack([rows[row], slots.nfe[rows][row], at[1] - slots.prompt[rows][row], old, new], 1)
        for slot, forward, position, before, after in table.tolist():
            slots.edits[slot].append((forward, position, before, after))

    def _fill(self, rows: Tensor, allowed: Tensor) -> None:
        """Set everything behind the first end token to end tokens."""
        slots, rows = self.slots, rows[allowed]
        if not len(rows):
            return
        places = torch.arange(slots.width, device=slots.device)
        written = (places >= slots.prompt[rows][:, None]) & (places < slots.canvas[rows][:, None])
        ends = (slots.ids[rows] == self.lm.eos_token_id) & written
        first = torch.where(ends.any(1), ends.long().argmax(1), slots.width)
        behind = written & (places > first[:, None])
        slots.ids[rows] = torch.where(behind, self.lm.eos_token_id, slots.ids[rows])
        slots.step_map[rows] = torch.where(behind, FILLED, slots.step_map[rows])

    def _after(self, rows: Tensor, masked: Tensor, rewritten: Tensor | None, silent: Tensor) -> None:
        """Advance the rows' places and note which blocks are settled."""
        slots = self.slots
        columns, inside = slots.block_columns(rows)
        left = ((slots.token(rows, columns) == self.lm.mask_token_id) & inside).any(1)
        had = masked.any(1)
        step = slots.step[rows]
        slots.step[rows] = torch.where(silent, step, step + 1)
        done = ~left
        if "mask_predicted" in self.compat or "dream_block_timesteps" in self.compat:
            done = done | (slots.step[rows] >= slots.steps[rows])
            if "mask_predicted" in self.compat:
                done = slots.step[rows] >= slots.steps[rows]
        if rewritten is not None:
            edited = rewritten.any(1)
            finished = (~had & ~edited) | (slots.posts[rows] >= self.edit["max_post_steps"])
            slots.posts[rows] += (~left & ~finished).long()
            done = ~left & finished
        done = torch.where(silent, self._settled[rows], done)
        if self.decoder.early_stop == "now":
            self._cut(rows, ~silent)
        self._waste(rows, masked, done & ~silent, silent)
        slots.fresh[rows] &= silent & (slots.extra[rows] == 0) & ~done
        self._settled[rows] = done

    def _cut(self, rows: Tensor, allowed: Tensor) -> None:
        """Finish rows in which a stop token has no mask before it."""
        slots = self.slots
        places = torch.arange(slots.width, device=slots.device)
        written = (places >= slots.prompt[rows][:, None]) & (places < slots.end[rows][:, None])
        ids = slots.ids[rows]
        stop = torch.isin(ids, self.stops) & written
        mask = (ids == self.lm.mask_token_id) & written
        first_stop = torch.where(stop.any(1), stop.long().argmax(1), slots.width)
        first_mask = torch.where(mask.any(1), mask.long().argmax(1), slots.width)
        slots.cut[rows] |= allowed & stop.any(1) & (first_stop < first_mask)

    def _waste(self, rows: Tensor, masked: Tensor, done: Tensor, silent: Tensor) -> None:
        """Forwards that published loops run behind a finished block; none without `compat`."""
        slots = self.slots
        if "separate_store" in self.compat:
            slots.extra[rows] = torch.where(done, 1, slots.extra[rows])
        if "extra_forward" in self.compat:
            slots.extra[rows] = torch.where(done & slots.fresh[rows], 1, slots.extra[rows])
        if "unroll" in self.compat:
            options = self.compat["unroll"]
            begins = (slots.unroll[rows] == 0) & ~silent
            count = (masked.sum(1) // options["expected_tpf"]).clamp(1, options["maximum"])
            left = torch.where(begins, count, slots.unroll[rows])
            left = torch.where(silent, left, left - 1)
            slots.unroll[rows] = left
            slots.extra[rows] = torch.where(done, left, slots.extra[rows])

    def begin(self, rows: Tensor) -> None:
        """Note that these rows have a new block."""
        self._settled[rows] = False

    def done(self, rows: Tensor) -> Tensor:
        """Which rows' blocks are settled: bool [A]."""
        return self._settled[rows]


__all__ = ["Committer", "Proposal"]
