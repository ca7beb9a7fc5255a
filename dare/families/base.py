"""`DiffusionLM`: an unmodified transformers network + an explicit mask + aligned logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from dare_bench.dare.families.chat import Chat
from dare_bench.dare.families.facts import Family
from dare_bench.kernels.masks import block_causal_mask, key_mask
from torch import Tensor, nn


class DiffusionLM:
    """A diffusion language model of any family behind one interface.

    Row i of what `logits` returns scores token i, for every family: a family whose head predicts the next token is
    shifted in `_at`, and nowhere else.

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
        self.mask_token_id = _token_id(config, "mask_token_id", family.mask_token_id)
        self.eos_token_id = _token_id(config, "eos_token_id", family.eos_token_id)
        self.pad_token_id = _token_id(config, "pad_token_id", self.eos_token_id)
        self.block_length = family.block_length(config)
        self.chat = None if tokenizer is None else Chat(tokenizer, family)
        stops = self.chat.stop_token_ids if self.chat else set()
        self.stop_token_ids: set[int] = stops | {self.eos_token_id}

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
        return self.model.lm_head.weight

    def hidden(
        self,
        ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        mask: str | Tensor = "auto",
        position_ids: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Any = None,
        block_length: int | None = None,
    ) -> Tensor:
        """Final hidden states, aligned: row i belongs to token i.

        Args:
            ids: int64 [B, n].
            attention_mask: [B, n], 1 = real token; closes padded keys.
            mask: ``auto`` (the family's own), ``full``, ``block_causal``, or bool [B or 1, 1, n, keys], True = attend.
            position_ids: int64 [B, n]; default 0.. counted from the first real token.
            positions: int64 [B, k] or bool [B, n]: rows to return; default all.
            cache: transformers cache; its keys come before those of `ids`. Then `mask` must be a tensor.
            block_length: of ``block_causal``; default the checkpoint's.

        Returns:
            [B, n, d], or [B, k, d], or [N, d] (N = number of True entries, row by row).

        Raises:
            ValueError: for an unknown mask name, or a named mask together with a cache.
        """
        if position_ids is None:
            position_ids = _positions(ids, attention_mask)
        allowed = self._mask(ids, mask, attention_mask, position_ids, cache, block_length)
        states = self.model.model(
            input_ids=ids, attention_mask=allowed, position_ids=position_ids, cache=cache, use_cache=cache is not None
        ).last_hidden_state
        return self._at(states, positions)

    def logits(self, ids: Tensor, **options: Any) -> Tensor:
        """Aligned logits in float32 (float64 for float64 weights); the head is computed only at `positions`.

        Args:
            ids: int64 [B, n].
            options: as in `hidden`.

        Returns:
            [B, n, V], or [B, k, V], or [N, V].
        """
        raw = self.model.lm_head(self.hidden(ids, **options))
        return raw if raw.dtype == torch.float64 else raw.float()

    @staticmethod
    def _at(states: Tensor, positions: Tensor | None) -> Tensor:
        if positions is None:
            return states
        if positions.dtype == torch.bool:
            return states[positions]
        return states.gather(1, positions.unsqueeze(-1).expand(-1, -1, states.shape[-1]))

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
        if mask == "auto":
            mask = "block_causal" if self.is_block_causal else "full"
        if cache is not None:
            raise ValueError(f"mask {mask!r} with a cache: give a bool mask [B, 1, n, cached keys + n] instead")
        if mask == "full":
            # None runs unmasked attention: the attention modules are set to is_causal=False when the model is built.
            return None if attention_mask is None else key_mask(attention_mask)
        if mask == "block_causal":
            allowed = block_causal_mask(position_ids, block_length or self.block_length)
            if attention_mask is None:
                return allowed
            # A padded query keeps itself: a row without an open key may become NaN and leak through its values.
            itself = torch.eye(ids.shape[1], dtype=torch.bool, device=ids.device)
            return (allowed & key_mask(attention_mask)) | itself
        raise ValueError(f"unknown mask {mask!r}; allowed: 'auto', 'full', 'block_causal' or a bool tensor")

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
    return default if value is None else int(value)


def _positions(ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    if attention_mask is None:
        return torch.arange(ids.shape[1], device=ids.device).expand(ids.shape[0], -1)
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
