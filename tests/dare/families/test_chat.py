"""Chat texts of every family: exact prompts, what supervised examples look like, reply ends, display pieces."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.facts import Overrides
from dare_bench.dare.families.loading import load, save
from dare_bench.dare.families.places import BadCheckpoint
from dare_bench.dare.families.registry import get_family
from dare_bench.dare.training.data import encode
from dare_bench.dare.training.tokenizer import MASK, SPECIALS, train_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

CHAT = [{"role": "user", "content": " What is 2+2? "}]
TURNS = [
    {"role": role, "content": text}
    for role, text in (("system", "Be brief."), ("user", "A"), ("assistant", "B"), ("user", "C"))
]
#: One user turn, and four turns with a system message: as the released templates render them.
LLADA = (
    "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nWhat is 2+2?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|startoftext|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
)
CHATML = (
    "<|im_start|>user\n What is 2+2? <|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
    "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n",
)
DREAM = ("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + CHATML[0], CHATML[1])
LLADA2 = (
    "<role>SYSTEM</role>detailed thinking off<|role_end|><role>HUMAN</role> What is 2+2? <|role_end|>"
    "<role>ASSISTANT</role>",
    "<role>SYSTEM</role>Be brief.\ndetailed thinking off<|role_end|><role>HUMAN</role>A<|role_end|>"
    "<role>ASSISTANT</role>B<|role_end|><role>HUMAN</role>C<|role_end|><role>ASSISTANT</role>",
)
#: Texts, end of a supervised reply, all ends, how often the first token of the first text occurs in it.
RULES = {
    "autoregressive": (CHATML, "<|im_end|>", {"<|im_end|>", "<|endoftext|>"}, 2),
    "dream": (DREAM, "<|im_end|>", {"<|im_end|>", "<|endoftext|>"}, 3),
    "sdar": (CHATML, "<|im_end|>", {"<|im_end|>", "<|endoftext|>"}, 2),
    "sdar_moe": (CHATML, "<|im_end|>", {"<|im_end|>", "<|endoftext|>"}, 2),
    "llada": (LLADA, "<|endoftext|>", {"<|eot_id|>", "<|endoftext|>"}, 1),
    "llada_moe": (LLADA2, "<|role_end|>", {"<|role_end|>", "<|endoftext|>"}, 3),
    "llada2_moe": (LLADA2, "<|role_end|>", {"<|role_end|>", "<|endoftext|>"}, 3),
}
#: The conversation of four turns when thinking is switched the other way than it is by default.
THINKING = {
    "sdar": (False, CHATML[1] + "<think>\n\n</think>\n\n"),
    "sdar_moe": (False, CHATML[1] + "<think>\n\n</think>\n\n"),
    "llada_moe": (True, LLADA2[1].replace("thinking off", "thinking on")),
    "llada2_moe": (True, LLADA2[1].replace("thinking off", "thinking on")),
}
SAVED = ("dream", "sdar", "llada", "llada2_moe")


def speaking(family, tiny_config, model=None, **changes):
    """A model with a byte-level tokenizer that carries no template of its own (no merges: bytes and special tokens)."""
    tokenizer = train_tokenizer(["x"], family, vocab_size=256 + len(SPECIALS[family]), chat_template=None)
    if family == "autoregressive":
        config = tiny_config("sdar", model_type="qwen3", mask_token_id=None)
    else:
        config = tiny_config(family, mask_token_id=tokenizer.convert_tokens_to_ids(MASK[family]))
    facts = get_family(family)
    return DiffusionLM(facts, config | changes, model or torch.nn.Identity(), tokenizer)


@pytest.fixture(params=RULES)
def talking(request, tiny_config):
    return speaking(request.param, tiny_config)


def test_chat_texts(talking):
    (short, long), *_ = RULES[talking.family.name]
    assert talking.render_chat(CHAT) == short
    assert talking.render_chat(TURNS) == long
    assert talking.render_chat(TURNS) == long  # rendering leaves the messages as they are


@pytest.mark.parametrize("family", THINKING)
def test_chat_options(family, tiny_config):
    thinks, text = THINKING[family]
    lm = speaking(family, tiny_config)
    facts, config = Overrides(chat_options={"enable_thinking": thinks}).apply(lm.family, lm.config)
    assert DiffusionLM(facts, config, lm.model, lm.tokenizer).render_chat(TURNS) == text
    facts, config = Overrides(chat_options={"enable_thinking": not thinks}).apply(lm.family, lm.config)
    assert DiffusionLM(facts, config, lm.model, lm.tokenizer).render_chat(TURNS) == lm.render_chat(TURNS)


def test_options_that_are_no_variables_of_a_template(tiny_config):
    lm = speaking("sdar", tiny_config)
    facts, config = Overrides(chat_options={"tokenize": True, "enable_thinking": False}).apply(lm.family, lm.config)
    with pytest.raises(ValueError, match=r"chat_options: tokenize; allowed: variables of the chat template"):
        DiffusionLM(facts, config, lm.model, lm.tokenizer)


def test_chat_tokens_are_the_text_and_nothing_else(talking):
    (text, long), _, _, starts = RULES[talking.family.name]
    ids = talking.encode_chat(CHAT)
    assert "".join(talking.chat.pieces(ids)) == text
    assert ids.count(ids[0]) == starts
    first = talking.tokenizer.convert_ids_to_tokens(ids[0])
    assert text.startswith(first) and first in SPECIALS[talking.family.name]
    shown = talking.decode(ids)
    assert "What is 2+2?" in shown
    assert "<|" not in shown and "<role>" not in shown
    assert talking.encode_chats([CHAT, TURNS]) == ([text, long], [ids, talking.encode_chat(TURNS)])
    assert talking.encode_chats([]) == ([], [])


def test_supervised_examples(talking):
    """The prompt opens the assistant turn, the reply is plain text closed once by the family's end."""
    (text, _), end, *_ = RULES[talking.family.name]
    example = {"id": "q", "prompt": CHAT, "completion": "4\n"}
    (row,) = encode(talking, [example], max_length=1000)
    show = talking.tokenizer.decode
    assert show([*row.prompt, *row.response]) == text + "4\n" + end
    assert show(row.response) == "4\n" + end
    assert row.prompt == talking.encode_chat(CHAT)
    (closed,) = encode(talking, [example | {"completion": "4\n" + end}], max_length=1000)
    assert closed.response == row.response


def test_reply_ends(talking):
    known = talking.tokenizer.get_vocab()
    _, end, stops, _ = RULES[talking.family.name]
    assert talking.chat.reply_end_id == known[end]
    assert talking.chat.stop_token_ids == {known[token] for token in stops}
    assert talking.stop_token_ids == talking.chat.stop_token_ids | {talking.eos_token_id}


def test_several_end_tokens_of_a_config(talking, tiny_config):
    other = speaking(talking.family.name, tiny_config, eos_token_id=[40, 41])
    assert (other.eos_token_id, other.pad_token_id) == (40, 40)
    assert other.stop_token_ids == other.chat.stop_token_ids | {40, 41}


def test_the_fill_of_replies_ends_them(tiny_config):
    """DiffuCoder pads replies with a token of its own; Dream's tokenizer has none."""
    lm = speaking("dream", tiny_config)
    before = len(lm.chat.stop_token_ids)
    lm.tokenizer.add_tokens(["<|dlm_pad|>"], special_tokens=True)
    again = DiffusionLM(lm.family, lm.config, lm.model, lm.tokenizer)
    assert lm.tokenizer.convert_tokens_to_ids("<|dlm_pad|>") in again.stop_token_ids
    assert len(again.chat.stop_token_ids) == before + 1


def test_pieces_of_characters_that_span_tokens(talking):
    ids = talking.chat.encode_text("aé漢😀b")
    pieces = talking.chat.pieces(ids)
    assert len(pieces) == len(ids) == 11
    assert [piece for piece in pieces if piece] == ["a", "é", "漢", "😀", "b"]
    broken = ids[:2]  # half a character at the end: shown, not dropped
    assert talking.chat.pieces(broken) == ["a", "\ufffd"]


@settings(deadline=None, max_examples=50, derandomize=True)
@given(text=st.text(max_size=20), family=st.sampled_from(["llada", "sdar"]))
def test_pieces_join_to_the_text(text, family, tiny_config):
    chat = speaking(family, tiny_config).chat
    ids = chat.encode_text(text)
    assert "".join(chat.pieces(ids)) == text
    assert len(chat.pieces(ids)) == len(ids)


def test_pieces_of_ids_above_the_tokenizer(talking):
    """The network has more rows than the tokenizer has tokens, and samplers do not close them."""
    assert talking.chat.pieces([65, 5000]) == [talking.tokenizer.decode([65]), ""]
    assert talking.decode([5000]) == ""


def test_text_without_a_tokenizer(tiny):
    with pytest.raises(ValueError, match=r"loaded without a tokenizer: put tokenizer\.json beside its config\.json"):
        tiny("sdar").encode_chat(CHAT)


@pytest.mark.parametrize("family", SAVED)
def test_a_tokenizer_of_its_own_template_wins_and_travels_with_the_checkpoint(family, tmp_path, tiny, tiny_config):
    plain = speaking(family, tiny_config, tiny(family).model)
    plain.tokenizer.chat_template = "{{ messages[0]['content'] }}|"
    lm = DiffusionLM(plain.family, plain.config, plain.model, plain.tokenizer)
    assert lm.render_chat(CHAT) == " What is 2+2? |"
    again = load(save(lm, tmp_path / "model"), device="cpu")
    assert again.encode_chat(CHAT) == lm.encode_chat(CHAT)
    assert again.stop_token_ids == lm.stop_token_ids
    assert again.mask_token_id == again.tokenizer.mask_token_id == lm.mask_token_id


@pytest.mark.parametrize("family", SAVED)
def test_a_manifest_s_template_beats_the_tokenizer_s_and_travels_too(family, tmp_path, tiny, tiny_config):
    lm = speaking(family, tiny_config, tiny(family).model)
    lm.tokenizer.chat_template = "the tokenizer's"
    first = load(save(lm, tmp_path / "a"), device="cpu", overrides=Overrides(chat_template="{{ messages | length }}!"))
    assert first.render_chat(TURNS) == "4!"
    assert load(save(first, tmp_path / "b"), device="cpu").render_chat(TURNS) == "4!"


STRANGE = {
    "attributes": "{{ ''.__class__.__mro__ }}",
    "subclasses": "{% for c in ().__class__.__base__.__subclasses__() %}{{ c }}{% endfor %}",
    "globals": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "formatting": "{{ '{0.__class__.__mro__}'.format('') }}",
    "changes": "{{ messages.append(1) }}",
    "includes": "{% include '/etc/passwd' %}",
    "syntax": "{% for message in messages %}",
    "refusal": "{{ raise_exception('only one turn') }}",
    "types": "{{ 'a' + 1 }}",
}


@pytest.mark.parametrize("template", STRANGE.values(), ids=STRANGE)
def test_templates_that_reach_out_or_break_are_refused_by_file(template, tmp_path, tiny, tiny_config):
    lm = speaking("sdar", tiny_config, tiny("sdar").model)
    lm.tokenizer.chat_template = template
    loaded = load(save(lm, tmp_path / "model"), device="cpu")
    with pytest.raises(
        BadCheckpoint, match=r"chat template of .*/model/chat_template\.jinja: .*give `chat_template` of"
    ):
        loaded.render_chat(CHAT)


def test_a_template_sees_no_more_than_it_is_given(tmp_path, tiny, tiny_config):
    lm = speaking("sdar", tiny_config, tiny("sdar").model)
    lm.tokenizer.chat_template = "{{ os is defined }} {{ open is defined }} {{ self is defined }} {{ model_type }}"
    loaded = load(save(lm, tmp_path / "model"), device="cpu")
    assert loaded.render_chat(CHAT).startswith("False False ")
    assert loaded.render_chat(CHAT).endswith(" sdar")
