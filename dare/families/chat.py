"""Tokenizers and chat texts: rendering prompts exactly, reply ends, token pieces for display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dare_bench.dare.families.facts import Family


class Chat:
    """A tokenizer with its family's chat rules.

    Args:
        tokenizer: a fast transformers tokenizer.
        family: facts; its template is used when the tokenizer carries none.
        model_type: of the config; templates see it under this name.
    """

    def __init__(self, tokenizer: Any, family: Family, model_type: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.template = getattr(tokenizer, "chat_template", None) or family.chat_template
        self.options = {"model_type": model_type, **family.chat_options}
        known = tokenizer.get_vocab()
        self.stop_token_ids = {known[token] for token in family.stop_tokens if token in known}
        self.reply_end_id = known.get(family.reply_end)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Prompt text up to and including the opened assistant turn."""
        return self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            chat_template=self.template,
            tokenize=False,
            add_generation_prompt=True,
            **self.options,
        )

    def encode(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of `render`; the template holds every special token, so none is added."""
        return self.encode_text(self.render(messages))

    def encode_all(self, conversations: Sequence[Sequence[Mapping[str, str]]]) -> tuple[list[str], list[list[int]]]:
        """Prompt texts and token ids of many conversations, tokenised in one call."""
        texts = [self.render(messages) for messages in conversations]
        return texts, [list(ids) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]

    def encode_text(self, text: str) -> list[int]:
        """Token ids of plain text, nothing added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One display string per token; joined they give the text with special tokens.

        Bytes of a character that spans tokens appear at its last token, the earlier ones get an empty piece.
        """
        pieces: list[str] = []
        done = 0  # tokens already emitted
        for end in range(1, len(ids) + 1):
            text = self.tokenizer.decode(list(ids[done:end]), skip_special_tokens=False)
            if text.endswith("\ufffd") and end < len(ids) and end - done < 4:
                pieces.append("")
                continue
            pieces.append(text)
            done = end
        return pieces
