"""Train a small byte-level tokenizer with a family's special tokens (for models trained from random weights)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_ANT = ("<|startoftext|>", "<|endoftext|>", "[gMASK]", "<|mask|>", "<role>", "</role>", "<|role_end|>")

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_SDAR = (*_CHATML, "<|MASK|>")
_LLADA2 = ("<|startoftext|>", "<|endoftext|>", "[gMASK]", "<|mask|>", "<role>", "</role>", "<|role_end|>")

#: Special tokens in id order behind the ordinary vocabulary, as the released tokenizers have them.
SPECIALS = {
    "autoregressive": _CHATML,
    "dream": (*_CHATML, "<|beginoftext|>", "<|mask|>"),
    "sdar": _SDAR,
    "sdar_moe": _SDAR,
    "llada": (
        "<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    ),
    "llada_moe": _LLADA2,
    "llada2_moe": _LLADA2,
    "diffusion_gemma": (
        "<pad>", "<eos>", "<bos>", "<|tool_response>", "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>",
    ),
}  # fmt: skip
#: Families without an entry have no mask token.
MASK = {
    "dream": "<|mask|>",
    "sdar": "<|MASK|>",
    "sdar_moe": "<|MASK|>",
    "llada": "<|mdm_mask|>",
    "llada_moe": "<|mask|>",
    "llada2_moe": "<|mask|>",
}
END = "<|endoftext|>"
ENDS = {"diffusion_gemma": "<eos>"}


def train_tokenizer(texts: Iterable[str], family: str, *, vocab_size: int, chat_template: str) -> Any:
    """Byte-level BPE in which every digit is a token of its own.

    Args:
        texts: training text without special tokens.
        family: decides the special tokens.
        vocab_size: size with special tokens.
        chat_template: stored with the tokenizer.

    Returns:
        A fast transformers tokenizer of exactly `vocab_size` entries; any UTF-8 text can be encoded.

    Raises:
        ValueError: if the text is too small for the vocabulary, or the family has no special tokens here.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if family not in SPECIALS:
        raise ValueError(f"no special tokens for family {family!r}; allowed: {', '.join(sorted(SPECIALS))}")
    specials = SPECIALS[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"the text yields {tokenizer.get_vocab_size()} tokens, wanted {vocab_size}: give more text")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=ENDS.get(family, END),
        pad_token=ENDS.get(family, END),
        mask_token=MASK.get(family),
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )
