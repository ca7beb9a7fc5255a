"""The autoregressive family: logits and sizes of transformers' own models, round trips, refused switches, chat texts."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from dare_bench.dare.families import loading
from dare_bench.dare.families.chat import Chat
from dare_bench.dare.families.facts import UnsupportedConfig
from dare_bench.dare.families.registry import detect, get_family
from dare_bench.dare.training.tokenizer import train_tokenizer

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 40,
}  # fmt: skip
CASES = [("qwen2", True), ("qwen2", False), ("qwen3", True), ("qwen3", False)]
FAMILY = get_family("autoregressive")


def official(kind: str, tied: bool):
    """A random model of transformers, built without this project."""
    config_class, cls = (
        (transformers.Qwen2Config, transformers.Qwen2ForCausalLM)
        if kind == "qwen2"
        else (transformers.Qwen3Config, transformers.Qwen3ForCausalLM)
    )
    more = {"head_dim": 16} if kind == "qwen3" else {}
    torch.manual_seed(3)
    model = cls(config_class(**SIZES, **more, tie_word_embeddings=tied)).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model


@pytest.mark.parametrize(("kind", "tied"), CASES)
def test_a_checkpoint_of_transformers_gives_its_logits_and_comes_back(kind, tied, tmp_path):
    model = official(kind, tied)
    model.save_pretrained(tmp_path / "theirs")
    lm = loading.load(tmp_path / "theirs")
    assert lm.family is FAMILY and lm.dtype == torch.float64
    assert lm.dims.parameters == sum(weight.numel() for weight in model.parameters())
    ids = torch.arange(24).view(2, 12) % 40
    with torch.no_grad():
        theirs = model(ids).logits
        torch.testing.assert_close(lm.logits(ids, aligned=False), theirs, atol=1e-12, rtol=0)
        torch.testing.assert_close(lm.logits(ids)[:, 1:], theirs[:, :-1], atol=1e-12, rtol=0)  # row i scores token i
        torch.testing.assert_close(lm.model(ids).logits, theirs, atol=1e-12, rtol=0)  # as TRL calls it
    loading.save(lm, tmp_path / "ours")
    again = loading.load(tmp_path / "ours")
    for name, weight in lm.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}}, "rope_type"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": "swapped"}, "attention_bias"),
        ({"num_experts": 8}, "num_experts"),
    ],
)
@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_unknown_switches_are_refused_by_name(kind, change, said):
    if change.get("attention_bias") == "swapped":
        change = {"attention_bias": kind == "qwen3"}
    with pytest.raises(UnsupportedConfig, match=said):
        FAMILY.network({"model_type": kind, **SIZES, **change})


def test_released_configs_are_read_whole():
    """Fields of Qwen2.5-0.5B-Instruct and Qwen3-0.6B as published."""
    qwen25 = json.loads(
        '{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id":'
        ' 151645, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,'
        ' "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14,'
        ' "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,'
        ' "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version":'
        ' "4.43.1", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936}'
    )
    assert detect(qwen25) is FAMILY
    assert FAMILY.parameters(qwen25) == 494_032_768
    assert FAMILY.network(qwen25).arguments["rope_parameters"]["rope_theta"] == 1e6
    qwen3 = {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
        "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
    }  # fmt: skip
    assert detect(qwen3) is FAMILY
    assert FAMILY.parameters(qwen3) == 596_049_920
    assert FAMILY.network(qwen3).model_class == "Qwen3ForCausalLM"


def test_chat_texts():
    tokenizer = train_tokenizer(["0 1"], "autoregressive", vocab_size=259, chat_template=None)
    messages = [{"role": "user", "content": "Hi"}]
    turn = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    system = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    assert Chat(tokenizer, FAMILY, "qwen3").render(messages) == turn
    assert Chat(tokenizer, FAMILY, "qwen2").render(messages) == system + turn
    given = [{"role": "system", "content": "Be brief."}, *messages]
    assert Chat(tokenizer, FAMILY, "qwen2").render(given) == "<|im_start|>system\nBe brief.<|im_end|>\n" + turn
    chat = Chat(tokenizer, FAMILY, "qwen3")
    assert chat.reply_end_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert chat.stop_token_ids == {tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")}
