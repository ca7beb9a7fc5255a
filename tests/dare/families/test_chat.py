"""Chat texts of every family: exact prompts, reply ends, display pieces."""

from __future__ import annotations

import pytest
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.loading import load, save
from dare_bench.dare.training.tokenizer import train_tokenizer

FAMILIES = ("llada", "sdar")
CHAT = [{"role": "user", "content": " What is 2+2? "}]


def test_text_without_a_tokenizer(tiny):
    with pytest.raises(ValueError, match=r"loaded without a tokenizer: put tokenizer\.json beside its config\.json"):
        tiny("sdar").encode_chat(CHAT)


TEXTS = {
    "llada": (
        "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nWhat is 2+2?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "sdar": "<|im_start|>user\n What is 2+2? <|im_end|>\n<|im_start|>assistant\n",
}
LONG = {
    "llada": (
        "<|startoftext|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "sdar": (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
        "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n"
    ),
}
ENDS = {
    "llada": ("<|endoftext|>", {"<|eot_id|>", "<|endoftext|>"}),
    "sdar": ("<|im_end|>", {"<|im_end|>", "<|endoftext|>"}),
}


@pytest.fixture(params=FAMILIES)
def talking(request, tiny, tiny_config):
    """A model with a byte-level tokenizer that carries no template of its own."""
    lm = tiny(request.param)
    # no merges: 256 bytes and the special tokens
    specials = {"llada": 6, "sdar": 4}[request.param]
    tokenizer = train_tokenizer(["x"], request.param, vocab_size=256 + specials, chat_template="")
    tokenizer.chat_template = None
    return DiffusionLM(lm.family, tiny_config(request.param), lm.model, tokenizer)


def test_chat_texts(talking):
    assert talking.render_chat(CHAT) == TEXTS[talking.family.name]
    turns = [("system", "Be brief."), ("user", "A"), ("assistant", "B"), ("user", "C")]
    assert talking.render_chat([{"role": role, "content": text} for role, text in turns]) == LONG[talking.family.name]


def test_chat_tokens_are_the_text_and_nothing_else(talking):
    ids = talking.encode_chat(CHAT)
    assert "".join(talking.chat.pieces(ids)) == TEXTS[talking.family.name]
    known = talking.tokenizer.get_vocab()
    starts = "<|startoftext|>" if talking.family.name == "llada" else "<|im_start|>"
    assert ids[0] == known[starts]
    assert ids.count(ids[0]) == TEXTS[talking.family.name].count(starts)
    text = talking.decode(ids)
    assert "What is 2+2?" in text
    assert "<|" not in text


def test_reply_ends(talking):
    known = talking.tokenizer.get_vocab()
    end, stops = ENDS[talking.family.name]
    assert talking.chat.reply_end_id == known[end]
    assert talking.chat.stop_token_ids == {known[token] for token in stops}
    assert talking.stop_token_ids == talking.chat.stop_token_ids | {talking.eos_token_id}


def test_pieces_of_characters_that_span_tokens(talking):
    ids = talking.chat.encode_text("aé漢😀b")
    pieces = talking.chat.pieces(ids)
    assert len(pieces) == len(ids) == 11
    assert [piece for piece in pieces if piece] == ["a", "é", "漢", "😀", "b"]
    broken = ids[:2]  # half a character at the end: shown, not dropped
    assert talking.chat.pieces(broken) == ["a", "\ufffd"]


def test_a_tokenizer_of_its_own_template_wins_and_travels_with_the_checkpoint(talking, tmp_path, tiny, tiny_config):
    talking.tokenizer.chat_template = "{{ messages[0]['content'] }}|"
    lm = DiffusionLM(talking.family, tiny_config(talking.family.name), talking.model, talking.tokenizer)
    assert lm.render_chat(CHAT) == " What is 2+2? |"
    again = load(save(lm, tmp_path / "model"), device="cpu")
    assert again.encode_chat(CHAT) == lm.encode_chat(CHAT)
    assert again.stop_token_ids == lm.stop_token_ids
