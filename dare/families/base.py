"""`DiffusionLM`: an unmodified transformers network + an explicit mask + aligned logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from dare_bench.dare.families.cache import PositionCache
from dare_bench.dare.families.chat import Chat
from dare_bench.dare.families.facts import BLOCK_CAUSAL, CAUSAL, FULL, Family
from dare_bench.dare.families.last_layer import only_at
from dare_bench.kernels.masks import block_causal_mask, doubled_mask, key_mask
from torch import Tensor, nn


class DiffusionLM:
    """A diffusion language model of any family behind one interface.

    Row i of what `logits` returns scores token i, for every family: a family whose head predicts the next token is
    shifted in `_at`, and nowhere else. There, row 0 of what is fed has no predecessor: it shows its own raw output, which
    means nothing. So never mask the first token of a sequence, and feed a window from one token before it.

    Args:
        family: facts of the family.
        config: official config.json, as a dict.
        model: the transformers network.
        tokenizer: a fast tokenizer, or None for token-level work.
    """

    def __init__(self, family: Family, config: Mapping[str, Any], model: nn.Module, tokenizer: Any = None) -> None:
        self.family = family
        self.config = dict(config)
        self.model = model
        self.tokenizer = tokenizer
        self.dims = family.dims(config)
        # How the weights were stored: the dtype of most of them, and of each by official name (empty for a fresh model).
        self.stored_dtype: torch.dtype | None = None
        self.stored_dtypes: dict[str, torch.dtype] = {}
        no_mask = -1 if family.mask_token_id is None else family.mask_token_id  # no id of any vocabulary
        self.mask_token_id = _token_id(config, "mask_token_id", no_mask)
        self.eos_token_id = _token_id(config, "eos_token_id", family.eos_token_id)
        self.pad_token_id = _token_id(config, "pad_token_id", self.eos_token_id)
        self.block_length = family.block_length(config)
        self.chat = None if tokenizer is None else Chat(tokenizer, family, config.get("model_type"))
        stops = self.chat.stop_token_ids if self.chat else set()
        listed = config.get("eos_token_id")
        self.stop_token_ids: set[int] = stops | {self.eos_token_id, *(listed if isinstance(listed, list) else ())}

    @property
    def is_block_causal(self) -> bool:
        """Whether finished blocks never see later ones (and their keys and values can be cached exactly)."""
        return self.family.block_causal

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.head_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Storage dtype of the weights."""
        return self.head_weight.dtype

    @property
    def vocab_size(self) -> int:
        """Width of the logits (the padded vocabulary)."""
        return self.head_weight.shape[0]

    @property
    def head_weight(self) -> Tensor:
        """Output head [V, d]."""
        return self.model.get_output_embeddings().weight

    def head(self, states: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., d], in float32 (float64 for float64 weights)."""
        raw = self.model.get_output_embeddings()(states)
        return raw if raw.dtype == torch.float64 else raw.float()

    def hidden(
        self,
        ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        mask: str | Tensor = "auto",
        position_ids: Tensor | None = None,
        positions: Tensor | tuple[Tensor, Tensor] | None = None,
        cache: Any = None,
        block_length: int | None = None,
        aligned: bool = True,
    ) -> Tensor:
        """Final hidden states, aligned: row i belongs to token i.

        Args:
            ids: int64 [B, n].
            attention_mask: [B, n], 1 = real token; closes padded keys. With a cache [B, keys].
            mask: ``auto`` (the family's own), ``full``, ``block_causal``, ``causal``, or bool [B or 1, 1, n, keys],
                True = attend.
            position_ids: int64 [B, n]; default 0.. counted from the first real token. Needed with a cache.
            positions: int64 [B, k], bool [B, n], or a pair int64 [N] (row, place): what to return; default all.
            cache: transformers cache; its keys come before those of `ids` (`PositionCache`: at their slots).
            block_length: of ``block_causal``; default the checkpoint's.
            aligned: False = as the network gives them (row i predicts token i + shift).

        Returns:
            [B, n, d], or [B, k, d], or [N, d] (for bool: N = number of True entries, row by row).

        Raises:
            ValueError: for an unknown mask name, a cache without `position_ids`, or a family that its engine alone feeds.
        """
        if self.family.trainer is None and self.family.engine != "engine":
            raise ValueError(
                f"{self.family.name} is for evaluation only: its network is fed by decoding.{self.family.engine}, "
                "and a sequence has no hidden states outside it"
            )
        if position_ids is None:
            if cache is not None:
                raise ValueError("with a cache give position_ids: the place of each fed token in its sequence")
            position_ids = _positions(ids, attention_mask)
        allowed = self._mask(ids, mask, attention_mask, position_ids, cache, block_length)
        trunk, shift = self.model.model, self.family.shift if aligned else 0
        fed = {
            "input_ids": ids,
            "attention_mask": allowed,
            "position_ids": position_ids,
            "cache": cache,
            "use_cache": cache is not None,
        }
        if not isinstance(positions, tuple):
            return self._at(trunk(**fed).last_hidden_state, positions, shift)
        positions = (positions[0], (positions[1] - shift).clamp(min=0) if shift else positions[1])
        with only_at(trunk, *positions) as narrowed:
            states = trunk(**fed).last_hidden_state
        return states[0] if narrowed else states[positions]

    def logits(self, ids: Tensor, **options: Any) -> Tensor:
        """Aligned logits in float32 (float64 for float64 weights); the head is computed only at `positions`.

        Args:
            ids: int64 [B, n].
            options: as in `hidden`.

        Returns:
            [B, n, V], or [B, k, V], or [N, V].
        """
        return self.head(self.hidden(ids, **options))

    def doubled(
        self,
        noisy: Tensor,
        clean: Tensor,
        *,
        noisy_positions: Tensor | None = None,
        noisy_real: Tensor | None = None,
        clean_real: Tensor | None = None,
        positions: Tensor | None = None,
        block_length: int | None = None,
    ) -> Tensor:
        """Hidden states of the noisy half of ``[noisy ; clean]``: every block denoised given the clean ones before it.

        One forward gives what a likelihood bound or a training step of a block family needs.

        Args:
            noisy: int64 [B, A], all of the sequence or a window of whole blocks.
            clean: int64 [B, L].
            noisy_positions: int64 [B, A], place of each noisy token in the sequence; default 0..A-1.
            noisy_real, clean_real: [B, A], [B, L], nonzero = real token; default all.
            positions: bool [B, A], rows to return; default all.
            block_length: default the checkpoint's.

        Returns:
            [B, A, d], or [N, d] with `positions`.

        Raises:
            ValueError: for a family without block-causal attention.

        Source:
            BD3-LM (arXiv 2503.09573), SDAR (arXiv 2510.06303).
        """
        if not self.is_block_causal:
            raise ValueError(
                f"the doubled layout is for block-causal families, {self.family.name!r} has full attention"
            )
        (count, width), length = noisy.shape, clean.shape[1]
        clean_positions = torch.arange(length, device=clean.device).expand(count, -1)
        if noisy_positions is None:
            noisy_positions = torch.arange(width, device=noisy.device).expand(count, -1)
        size = block_length or self.block_length
        mask = doubled_mask(noisy_positions, clean_positions, size, noisy_real=noisy_real, clean_real=clean_real)
        place = torch.cat([noisy_positions, clean_positions], 1)
        scored = positions
        if positions is not None:
            scored = torch.cat([positions, positions.new_zeros(count, length)], 1)
        states = self.hidden(torch.cat([noisy, clean], 1), mask=mask, position_ids=place, positions=scored)
        return states if positions is not None else states[:, :width]

    @staticmethod
    def _at(states: Tensor, positions: Tensor | None, shift: int) -> Tensor:
        if positions is None:
            return torch.cat([states[:, :shift], states[:, : states.shape[1] - shift]], 1) if shift else states
        if positions.dtype == torch.bool:
            rows, columns = positions.nonzero(as_tuple=True)
            return states[rows, (columns - shift).clamp(min=0)]
        index = (positions - shift).clamp(min=0)
        return states.gather(1, index.unsqueeze(-1).expand(-1, -1, states.shape[-1]))

    def _mask(
        self,
        ids: Tensor,
        mask: str | Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor,
        cache: Any,
        block_length: int | None,
    ) -> Tensor | None:
        if isinstance(mask, Tensor):
            return mask
        kind = self.family.attention if mask == "auto" else mask
        if kind not in (FULL, BLOCK_CAUSAL, CAUSAL):
            raise ValueError(
                f"unknown mask {mask!r}; allowed: 'auto', 'full', 'block_causal', 'causal' or a bool tensor"
            )
        if kind == FULL and self.family.attention != CAUSAL:
            # None runs unmasked attention: the attention modules are set to is_causal=False when the model is built.
            return None if attention_mask is None else key_mask(attention_mask)
        width = ids.shape[1]
        keys = width if cache is None else _keys(cache, width)
        if attention_mask is not None:
            key_positions = _positions(attention_mask, attention_mask)
        elif cache is None:
            key_positions = position_ids
        else:
            key_positions = torch.arange(keys, device=ids.device).expand(ids.shape[0], -1)
        size = {FULL: 1 << 62, CAUSAL: 1, BLOCK_CAUSAL: block_length or self.block_length}[kind]
        allowed = block_causal_mask(position_ids, size, key_positions)
        if attention_mask is None:
            return allowed
        allowed = allowed & key_mask(attention_mask)
        if cache is not None:
            return allowed
        # A padded query keeps itself: a row without an open key may become NaN and leak through its values.
        return allowed | torch.eye(width, dtype=torch.bool, device=ids.device)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Prompt token ids of a conversation, up to and including the opened assistant turn."""
        return self._chat().encode(messages)

    def encode_chats(self, conversations: Sequence[Sequence[Mapping[str, str]]]) -> tuple[list[str], list[list[int]]]:
        """Prompt texts and token ids of many conversations, in one call."""
        return self._chat().encode_all(conversations) if conversations else ([], [])

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Prompt text of a conversation."""
        return self._chat().render(messages)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids without special tokens."""
        return self._chat().decode(ids)

    def _chat(self) -> Chat:
        if self.chat is None:
            raise ValueError("this model was loaded without a tokenizer: put tokenizer.json beside its config.json")
        return self.chat

    def train(self, mode: bool = True) -> DiffusionLM:
        """Switch dropout (adapters only; the families have none)."""
        self.model.train(mode)
        return self

    def eval(self) -> DiffusionLM:
        """Switch dropout off."""
        return self.train(False)


def _token_id(config: Mapping[str, Any], field: str, default: int) -> int:
    value = config.get(field)
    if isinstance(value, list):  # several end tokens: the first one ends a text, the others a turn
        value = value[0] if value else None
    return default if value is None else int(value)


def _keys(cache: Any, fed: int) -> int:
    """Keys a forward attends to: a cache with slots knows, others append what is fed."""
    return cache.end if isinstance(cache, PositionCache) else cache.get_seq_length() + fed


def _positions(ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    if attention_mask is None:
        return torch.arange(ids.shape[1], device=ids.device).expand(ids.shape[0], -1)
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
