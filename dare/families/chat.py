"""Tokenizers and chat texts: rendering prompts exactly, reply ends, token pieces for display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dare_bench.dare.families.facts import Family
from dare_bench.dare.families.places import BadCheckpoint

#: Arguments of `apply_chat_template` that are no variables of a template.
_RESERVED = frozenset(
    {
        "conversation", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize", "padding",
        "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
    }
)  # fmt: skip


class Chat:
    """A tokenizer with its family's chat rules.

    Args:
        tokenizer: a fast transformers tokenizer.
        family: facts; its template is used when the tokenizer carries none.
        model_type: of the config; templates see it under this name.

    Raises:
        ValueError: if `chat_options` names something that is no variable of a template.
    """

    def __init__(self, tokenizer: Any, family: Family, model_type: str | None = None) -> None:
        self.tokenizer = tokenizer
        own = getattr(tokenizer, "chat_template", None)
        self.template = own or family.chat_template
        self._source = getattr(tokenizer, "template_source", "the tokenizer") if own else f"the family {family.name}"
        self.options = {"model_type": model_type, **family.chat_options}
        reserved = sorted(_RESERVED & set(self.options))
        if reserved:
            raise ValueError(f"chat_options: {', '.join(reserved)}; allowed: variables of the chat template")
        find = tokenizer.backend_tokenizer.token_to_id
        self.stop_token_ids: set[int] = {find(token) for token in family.stop_tokens} - {None}
        self.reply_end_id: int | None = find(family.reply_end)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Prompt text up to and including the opened assistant turn.

        The template may be a stranger's: transformers runs it in jinja's immutable sandbox, which refuses attributes that
        lead out of it (``''.__class__``), and knows no files and no imports.

        Raises:
            BadCheckpoint: if the template fails, naming its file.
        """
        try:
            return self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=self.template,
                tokenize=False,
                add_generation_prompt=True,
                **self.options,
            )
        except ImportError:
            raise  # too old a jinja2
        except Exception as error:  # a template fails in any way its operations can
            raise BadCheckpoint(
                f"chat template of {self._source}: {type(error).__name__}: {error}. "
                "Correct it, or give `chat_template` of the model in the manifest."
            ) from error

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
        start, shown, waiting = 0, "", 0  # first token of the open text, what is out of it, tokens since
        for end in range(1, len(ids) + 1):
            text = self.tokenizer.decode(list(ids[start:end]), skip_special_tokens=False)
            whole = text.rstrip("\ufffd")  # an unfinished character shows as replacement characters
            grew = len(whole) > len(shown)
            # A character has four bytes: after four tokens it was none.
            if whole == text or end == len(ids) or (waiting == 3 and not grew):
                pieces.append(text[len(shown) :])
                start, shown, waiting = end, "", 0
            else:
                pieces.append(whole[len(shown) :])
                shown, waiting = whole, 1 if grew else waiting + 1
        return pieces
