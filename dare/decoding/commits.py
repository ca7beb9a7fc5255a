"""What happens between two forwards: propose, weigh, select, edit, write, and decide whether the block is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from dare_bench.dare.decoding import schedulers, selectors
from dare_bench.dare.decoding.draws import Draws
from dare_bench.dare.decoding.generation import FILLED
from dare_bench.dare.decoding.look import Look, Proposed
from dare_bench.dare.decoding.predict import Predictor
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
        #: Which token ids end a text: bool [V], also for ids beyond the head's.
        ids = sorted(self.lm.stop_token_ids)
        size = 1 + max(self.lm.vocab_size, self.lm.mask_token_id, self.lm.pad_token_id, *ids)
        self.stops = torch.zeros(size, dtype=torch.bool, device=slots.device)
        self.stops[ids] = True
        self.compat = self.decoder.compat
        #: Some forwards commit nothing: those that published loops run behind a finished block, or to store it.
        self.wastes = bool({"separate_store", "extra_forward", "unroll"} & set(self.compat))
        # A quota with as many steps as a block has positions is one token per step.
        is_single = schedule.name == "quota" and self.lm.is_block_causal and not slots.layout
        self._ones: Tensor | None = None
        if is_single and slots.default_steps == slots.size:
            self._ones = torch.ones(slots.count, dtype=torch.int64, device=slots.device)
        self._settled = torch.zeros(slots.count, dtype=torch.bool, device=slots.device)

    def editable(self, columns: Tensor, tokens: Tensor, inside: Tensor, now: SimpleNamespace) -> Tensor | None:
        """Committed positions of the block that may be rewritten: bool [A, b], or None without an editor."""
        if "overwrite" in self.compat:  # the published code reaches the whole block, the prompt's part too
            whole = (columns >= now.start[:, None]) & (columns < now.end[:, None]) & inside.any(1, keepdim=True)
            return whole & (tokens != self.lm.mask_token_id)
        if not self.edit:
            return None
        return inside & (tokens != self.lm.mask_token_id) & (columns >= now.start[:, None])

    def __call__(self, look: Look, hidden: Tensor, blank: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Commit after a forward.

        Args:
            look: what it saw.
            hidden, blank: [N, d], states at the scored positions; of the rows without prompt, or None.

        Returns:
            The rows' next step [A], tokens committed in the block [A], and whether the block is settled [A].
        """
        slots, rows, now = self.slots, look.rows, look.now
        proposal, measure = self._propose(look, hidden, blank)
        view = self._view(look, proposal, measure)
        chosen = self.selector.function(view, **self.options)
        if "dream_window" in self.compat:
            # The refreshing forward is the only one that sees the block's first position.
            first = look.columns == now.start[:, None]
            chosen = torch.where(look.full.bool()[:, None], first & look.masked, chosen)
        overwritten = None
        if "overwrite" in self.compat:
            overwritten = self._uncapped(view, chosen, look.editable, look.silent)
        self._write(look, chosen, overwritten, proposal)
        rewritten = None
        if look.editable is not None and self.edit:
            sure = proposal["probability"] > self.edit["threshold"]
            rewritten = look.editable & sure & (proposal["token"] != look.tokens)
            self._rewrite(look, rewritten, proposal)
        if self.decoder.early_stop == "fill":
            self._fill(rows, ~look.silent & (~look.full.bool() | (slots.decoder.cache in ("none", "auto"))))
        step, done = self._after(look, chosen, rewritten)
        return step, now.committed + chosen.sum(1), done

    def _propose(self, look: Look, hidden: Tensor, blank: Tensor | None) -> tuple[Proposed, Tensor]:
        """Proposals, and the measure [A, b] that the selector sorts by."""
        now, (row, place, _) = look.now, look.scored
        uniforms = None
        if self.decoder.temperature > 0:
            at = torch.zeros_like(look.masked)
            at[row, place] = True
            uniforms = self.draws().tokens(look.rows, look.columns, at, now.nfe, self.lm.vocab_size)
        where = None
        if self.weighting is not None:
            where = (look.rows[row], place - (now.start - now.view)[row])
        grid = Proposed(self.predictor(hidden, blank, self.weighting, where, uniforms), look)
        found = -grid["entropy"] if self.selector.measure == "entropy" else grid[self.selector.measure]
        if self.weighting is not None:
            is_eos = grid["token"] == self.lm.eos_token_id
            found = self.weighting.weigh(found, grid["token"], is_eos, now.step, now.steps)
        return grid, found

    def _view(self, look: Look, proposal: Proposed, measure: Tensor) -> selectors.BlockView:
        now, masked = look.now, look.masked
        is_block = self.lm.is_block_causal
        quota = self._quota(look) if self._ones is None else self._ones[: len(look.rows)]
        if not is_block:
            guaranteed = torch.ones_like(quota)
        else:
            guaranteed = quota.clamp(min=1) if self._ones is None else quota
        draws = self.draws()
        return selectors.BlockView(
            confidence=measure,
            candidates=masked,
            quota=quota,
            guaranteed=guaranteed,
            strict=is_block,
            step=now.step,
            steps=now.steps,
            probability=proposal["probability"],
            entropy=None if proposal.flat.entropy is None else proposal["entropy"],
            uniform=lambda: draws.positions(look.rows, look.columns, masked, now.nfe),
            draw=lambda weights, counts: draws.subset(weights, counts, look.rows, look.columns, now.nfe),
            compat=self.compat,
        )

    def _quota(self, look: Look) -> Tensor:
        now, is_block = look.now, self.lm.is_block_causal
        state = schedulers.ScheduleState(
            masks_now=look.masked.sum(1),
            masks_at_start=torch.full_like(now.masks, self.slots.size) if is_block else now.masks,
            step=now.step,
            steps=now.steps,
            block=now.block,
            committed=now.committed,
        )
        return self.schedule.count(state, **self.schedule_options)

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

    def _write(self, look: Look, chosen: Tensor, overwritten: Tensor | None, proposal: Proposed) -> None:
        slots, (row, place, column) = self.slots, look.scored
        which = chosen[row, place].nonzero()[:, 0]
        row = row[which]
        at = (look.rows[row], column[which])
        new = proposal.flat.token[which]
        slots.ids[at] = new
        when = look.now.nfe[row]
        if "mask_predicted" in self.compat:  # the mask id may be chosen: the position then stays masked
            when = torch.where(new == self.lm.mask_token_id, slots.step_map[at], when)
        slots.step_map[at] = when
        slots.confidence[at] = getattr(proposal.flat, proposal.kept)[which]
        if overwritten is not None and bool(overwritten.any()):
            self._rewrite(look, overwritten, proposal)

    def _rewrite(self, look: Look, rewritten: Tensor, proposal: Proposed) -> None:
        slots, rows, now = self.slots, look.rows, look.now
        row, place = rewritten.nonzero(as_tuple=True)
        if not len(row):
            return
        at = (rows[row], look.columns[row, place])
        old, new = look.tokens[row, place], proposal["token"][row, place]
        slots.ids[at] = new
        slots.confidence[at] = proposal[proposal.kept][row, place]
        table = torch.stack([rows[row], now.nfe[row], at[1] - now.prompt[row], old, new], 1)
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

    def _after(self, look: Look, chosen: Tensor, rewritten: Tensor | None) -> tuple[Tensor, Tensor]:
        """The rows' next step, and which blocks are settled."""
        slots, rows, now, silent = self.slots, look.rows, look.now, look.silent
        if self.decoder.early_stop == "fill":  # positions went that were not chosen
            left = (look.masked & (slots.token(rows, look.columns) == self.lm.mask_token_id)).any(1)
        else:
            left = (look.masked & ~chosen).any(1)
        step = now.step + (~silent).long() if self.wastes else now.step + 1
        done = ~left
        if "mask_predicted" in self.compat:
            done = step >= now.steps
        elif "dream_block_timesteps" in self.compat:
            done = done | (step >= now.steps)
        if rewritten is not None:
            edited, had = rewritten.any(1), look.masked.any(1)
            finished = (~had & ~edited) | (now.posts >= self.edit["max_post_steps"])
            slots.posts[rows] += (~left & ~finished).long()
            done = ~left & finished
        if self.decoder.early_stop == "now":
            self._cut(rows, ~silent)
        if self.wastes:
            done = torch.where(silent, self._settled[rows] & ~slots.fresh[rows], done)
            self._settled[rows] = done
            self._waste(look, done & ~silent)
            slots.fresh[rows] = slots.fresh[rows] & silent & (slots.extra[rows] == 0) & ~done
        return step, done

    def _cut(self, rows: Tensor, allowed: Tensor) -> None:
        """Finish rows in which a stop token has no mask before it."""
        slots = self.slots
        places = torch.arange(slots.width, device=slots.device)
        written = (places >= slots.prompt[rows][:, None]) & (places < slots.end[rows][:, None])
        ids = slots.ids[rows]
        stop = self.stops[ids] & written
        mask = (ids == self.lm.mask_token_id) & written
        first_stop = torch.where(stop.any(1), stop.long().argmax(1), slots.width)
        first_mask = torch.where(mask.any(1), mask.long().argmax(1), slots.width)
        slots.cut[rows] |= allowed & stop.any(1) & (first_stop < first_mask)

    def _waste(self, look: Look, done: Tensor) -> None:
        """Forwards that published loops run behind a finished block."""
        slots, rows, silent = self.slots, look.rows, look.silent
        if "separate_store" in self.compat:
            slots.extra[rows] = torch.where(done, 1, slots.extra[rows])
        if "extra_forward" in self.compat:
            slots.extra[rows] = torch.where(done & slots.fresh[rows], 1, slots.extra[rows])
        if "unroll" in self.compat:
            options = self.compat["unroll"]
            begins = (slots.unroll[rows] == 0) & ~silent
            count = (look.masked.sum(1) // options["expected_tpf"]).clamp(1, options["maximum"])
            left = torch.where(begins, count, slots.unroll[rows])
            left = torch.where(silent, left, left - 1)
            slots.unroll[rows] = left
            slots.extra[rows] = torch.where(done, left, slots.extra[rows])
