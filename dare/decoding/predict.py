"""From hidden states to proposed tokens and their confidence, at the positions that may change and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.families.base import DiffusionLM
from torch import Tensor

#: Output-head rows computed at once: bounds the logits to this many times V.
HEAD_ROWS = 1024
#: Numbers that may be copied once more without being felt.
SMALL = 1 << 19


@dataclass
class Proposal:
    """Proposed tokens of N positions.

    Attributes:
        token: int64 [N].
        probability: float32 [N], of the token, as the decoder's settings define confidence.
        plain: float32 [N] or None, of the token under the model's own logits (temperature 1, after guidance), where that
            is another number.
        margin: float32 [N] or None, probability of the best minus that of the second.
        entropy: float32 [N] or None, of the distribution, in nats.
    """

    token: Tensor
    probability: Tensor
    margin: Tensor | None = None
    entropy: Tensor | None = None
    plain: Tensor | None = None


class Predictor:
    """Turns hidden states into proposals under a decoder's settings.

    Args:
        lm: gives head, mask id and end tokens.
        decoder: temperature, filters, guidance, end rule.
        measure: what else the selector needs: ``probability``, ``margin`` or ``entropy``.
        needs_entropy: the selector looks at entropies beside its measure.
    """

    def __init__(self, lm: DiffusionLM, decoder: DecoderConfig, *, measure: str, needs_entropy: bool) -> None:
        self.lm, self.decoder = lm, decoder
        self.needs_margin = measure == "margin"
        self.needs_entropy = needs_entropy or measure == "entropy"
        self.allows_mask = "mask_predicted" in decoder.compat
        self.ends = torch.tensor(sorted(lm.stop_token_ids), device=lm.device)
        filters = decoder.temperature > 0 or decoder.top_p is not None or decoder.top_k is not None
        self.changes = decoder.eos_rule != "plain" or (decoder.confidence == "filtered" and filters)

    def __call__(
        self,
        hidden: Tensor,
        unconditional: Tensor | None,
        weighting: Any,
        where: tuple[Tensor, Tensor] | None,
        uniforms: Callable[[slice], Tensor] | None,
    ) -> Proposal:
        """Proposals at N positions.

        Args:
            hidden: [N, d].
            unconditional: [N, d], hidden states of the rows without a prompt, with guidance.
            weighting: object with `adjust`, or None.
            where: (row [N], place [N]): slots, and places in the block; with a weighting.
            uniforms: slice -> float64 [n, V] for sampling, or None.
        """
        parts = []
        for begin in range(0, len(hidden), HEAD_ROWS):
            cut = slice(begin, begin + HEAD_ROWS)
            logits = self.lm.head(hidden[cut])
            if unconditional is not None:
                blank = self.lm.head(unconditional[cut])
                logits = blank + (self.decoder.cfg_scale + 1) * (logits - blank)
            own = logits
            if weighting is not None and where is not None:
                logits = weighting.adjust(logits, where[0][cut], where[1][cut])
            kept = _spread(own) if self.changes or own is not logits else None
            proposal = self._propose(logits, None if uniforms is None else uniforms(cut))
            if kept is not None:
                proposal.plain = _share(*kept, proposal.token).float()
            parts.append(proposal)
        if not parts:
            empty = hidden.new_zeros(0, dtype=torch.float32)
            return Proposal(
                empty.long(), empty, empty if self.needs_margin else None, empty if self.needs_entropy else None
            )
        if len(parts) == 1:
            return parts[0]
        joined = {
            name: None if getattr(parts[0], name) is None else torch.cat([getattr(part, name) for part in parts])
            for name in ("token", "probability", "margin", "entropy", "plain")
        }
        return Proposal(**joined)  # type: ignore[arg-type]

    def _propose(self, logits: Tensor, uniforms: Tensor | None) -> Proposal:
        decoder = self.decoder
        if decoder.eos_rule == "never":
            logits[:, self.lm.eos_token_id] = -torch.inf
        scaled = logits / decoder.temperature if decoder.temperature > 0 else logits
        filtered = scaled
        if decoder.top_p is not None:
            filtered = keep_top_p(filtered, decoder.top_p)
        if decoder.top_k is not None:
            filtered = keep_top_k(filtered, decoder.top_k)
        if uniforms is None:
            token, peak = self._best(filtered)
        else:
            token, peak = self._best(filtered.double() - (-uniforms.log()).log())
        basis = filtered if decoder.confidence == "filtered" else logits
        if decoder.eos_rule == "last":
            basis = basis.index_fill(1, self.ends, -torch.inf)
        spread, total = _spread(basis, peak if basis is filtered and uniforms is None else None)
        probability = _share(spread, total, token).float()
        margin = entropy = None
        if self.needs_margin or self.needs_entropy:
            shares = spread / total[:, None].to(spread.dtype)
            if self.needs_margin:
                best = shares.topk(2, dim=-1).values
                margin = (best[:, 0] - best[:, 1]).float()
            if self.needs_entropy:
                entropy = -(shares * (shares + 1e-10).log()).sum(-1).float()
        return Proposal(token, probability, margin, entropy)

    def _best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The best token of each row, never the mask id; and the best score, the mask's included."""
        mask = self.lm.mask_token_id
        if self.allows_mask or mask < 0:
            return _top(scores)
        # The mask id stays in the softmax, as published, but is never chosen.
        if scores.device.type == "cpu":  # a look at the result is free here, and it is seldom the best
            token, peak = _top(scores)
            wrong = token == mask
            if wrong.any():
                others = scores[wrong]
                others[:, mask] = -torch.inf
                token[wrong] = _top(others)[0]
            return token, peak
        # Elsewhere its column is away for a moment.
        column = scores.select(1, mask)
        held = column.clone()
        column.fill_(-torch.inf)
        token, peak = _top(scores)
        column.copy_(held)
        return token, torch.maximum(peak, held)


def _top(scores: Tensor) -> tuple[Tensor, Tensor]:
    """First best column and best score of each row."""
    if scores.device.type != "cpu":
        peak, token = scores.max(-1)
        return token, peak
    # On a CPU torch looks for places one number after the other, NumPy with vector instructions: 7 to 10 times faster.
    token = torch.from_numpy(scores.detach().numpy().argmax(-1))
    return token, scores.gather(1, token[:, None]).squeeze(1)


def _spread(logits: Tensor, peak: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Softmax before its division: exp(logit - best) [N, V], and the sums, float64 [N].

    Sums in float64 keep apart probabilities close to one, and it is several times faster than `logsumexp` on a CPU.
    """
    best = logits.max(-1).values if peak is None else peak
    spread = (logits - best[:, None]).exp_()
    if spread.numel() <= SMALL:  # a copy that stays in the cache is faster than a sum that converts as it goes
        return spread, spread.double().sum(-1)
    return spread, spread.sum(-1, dtype=torch.float64)


def _share(spread: Tensor, total: Tensor, token: Tensor) -> Tensor:
    """Probability of one token per row, float64 [N]."""
    return spread.gather(1, token[:, None]).squeeze(1) / total  # a float32 divided by a float64 is a float64


def keep_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Close the tokens whose more probable ones already hold more than `top_p`; the best token always stays.

    Args:
        logits: float [N, V].
        top_p: share in (0, 1].

    Returns:
        float [N, V], closed tokens at the lowest finite value.

    Source:
        Dream `generation_utils.py`.
    """
    values, order = logits.sort(dim=-1, descending=True)
    above = values.softmax(-1).cumsum(-1) > top_p
    above[:, 1:] = above[:, :-1].clone()
    above[:, 0] = False
    closed = torch.zeros_like(above).scatter(1, order, above)
    return logits.masked_fill(closed, torch.finfo(logits.dtype).min)


def keep_top_k(logits: Tensor, top_k: int) -> Tensor:
    """Close all but the `top_k` best tokens.

    Args:
        logits: float [N, V].
        top_k: at least 1.

    Returns:
        float [N, V], closed tokens at the lowest finite value.
    """
    limit = logits.topk(min(top_k, logits.shape[1]), dim=-1).values[:, -1:]
    return logits.masked_fill(logits < limit, torch.finfo(logits.dtype).min)
