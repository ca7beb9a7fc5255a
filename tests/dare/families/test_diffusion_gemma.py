"""DiffusionGemma: exact sizes, official names, what is refused, round trips with and without transformers' own writer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dare_bench.dare.families import loading, weights
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.facts import UnsupportedConfig
from dare_bench.dare.families.registry import detect, get_family
from safetensors import safe_open

FAMILY = get_family("diffusion_gemma")

#: google/diffusiongemma-26B-A4B-it, the fields that determine sizes.
RELEASED: dict[str, Any] = {
    "architectures": ["DiffusionGemmaForBlockDiffusion"], "model_type": "diffusion_gemma", "canvas_length": 256,
    "dtype": "bfloat16", "tie_word_embeddings": True, "eos_token_id": [1, 106, 50], "image_token_id": 258880,
    "text_config": {
        "model_type": "diffusion_gemma_text", "dtype": "bfloat16", "vocab_size": 262144, "hidden_size": 2816,
        "intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2, "num_experts": 128,
        "top_k_experts": 8, "moe_intermediate_size": 704, "sliding_window": 1024, "final_logit_softcapping": 30.0,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5, "use_bidirectional_attention": "vision",
        "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "attention_dropout": 0.0,
        "tie_word_embeddings": True, "rms_norm_eps": 1e-6, "max_position_embeddings": 262144,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "vision_config": {
        "model_type": "gemma4_vision", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 72, "standardize": True,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def lm(tiny: Callable[..., DiffusionLM]) -> DiffusionLM:
    return tiny("diffusion_gemma", dtype=torch.float32)


def test_detected_by_type_or_architecture() -> None:
    assert detect({"model_type": "diffusion_gemma"}) is FAMILY
    assert detect({"architectures": ["DiffusionGemmaForBlockDiffusion"]}) is FAMILY


@pytest.mark.parametrize("config", ["tiny", "released"])
def test_sizes_and_names_are_those_of_the_network(config: str, tiny_config: Callable[..., dict[str, Any]]) -> None:
    official = RELEASED if config == "released" else tiny_config("diffusion_gemma")
    network = loading.build(FAMILY, official, dtype=torch.bfloat16, device="meta")
    network.tie_weights()
    dims = FAMILY.dims(official)
    assert dims.parameters == sum(parameter.numel() for parameter in network.parameters())
    vision = [network.model.encoder.vision_tower, network.model.encoder.embed_vision]
    assert dims.vision == sum(parameter.numel() for module in vision for parameter in module.parameters())
    maps = [
        module
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear) and name.startswith("model.decoder.layers") and "self_attn" in name
    ]
    assert dims.lora_parameters(3) == 3 * sum(module.in_features + module.out_features for module in maps)
    shared: dict[int, set[str]] = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        shared.setdefault(id(tensor), set()).add(name)
    official_names = [name for name, _ in FAMILY.tensors(official)]
    assert len(official_names) == len(set(official_names)) == len(shared)
    assert all(len(names & set(official_names)) == 1 for names in shared.values())


def test_released_sizes_are_the_published_ones() -> None:
    dims = FAMILY.dims(RELEASED)
    assert dims.parameters == 25_823_778_864
    assert round((dims.parameters - dims.vision) / 1e9, 2) == 25.25
    assert round(dims.active / 1e9, 1) == 3.8
    assert FAMILY.kv_bytes_per_token(RELEASED) == 225_280


def test_cached_values_per_token(lm: DiffusionLM) -> None:
    cache = lm.model.model.encoder(input_ids=torch.tensor([[3, 4, 5, 6]])).cache
    stored = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert stored == 4 * lm.dims.kv_values_per_token


@pytest.mark.parametrize("which", ["clipped", "standardized", "default layers"])
def test_names_of_other_configs(which: str, tiny_config: Callable[..., dict[str, Any]]) -> None:
    config = tiny_config("diffusion_gemma")
    if which == "default layers":
        changes = {"layer_types": None, "num_hidden_layers": 12, "num_global_key_value_heads": None}
        config = config | {"text_config": config["text_config"] | changes}
    else:
        switch = {"clipped": "use_clipped_linears", "standardized": "standardize"}[which]
        config = config | {"vision_config": config["vision_config"] | {switch: True}}
    network = loading.build(FAMILY, config, dtype=torch.float32, device="meta")
    network.tie_weights()
    names = {name for name, _ in FAMILY.tensors(config)}
    assert names <= set(network.state_dict())
    assert len(names) == len({id(tensor) for tensor in network.state_dict(keep_vars=True).values()})
    assert FAMILY.dims(config).parameters == sum(parameter.numel() for parameter in network.parameters())


def test_round_trip(lm: DiffusionLM, tmp_path: Path) -> None:
    loaded = loading.load(loading.save(lm, tmp_path), device="cpu")
    assert loaded.family is FAMILY
    _assert_equal(loaded, lm)
    with safe_open(tmp_path / "model.safetensors", "pt") as stored:
        assert set(stored.keys()) == {name for name, _ in FAMILY.tensors(lm.config)}
    head, table = loaded.head_weight, loaded.model.model.encoder.language_model.embed_tokens.weight
    assert head.data_ptr() == table.data_ptr()
    assert loaded.model.model.encoder.language_model.layers[0].self_attn.is_causal


def test_shared_weights_get_memory_once(lm: DiffusionLM, monkeypatch: pytest.MonkeyPatch) -> None:
    network = loading.build(FAMILY, lm.config, dtype=torch.float32, device="meta")
    taken: list[int] = []
    inner = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda like, **given: taken.append(like.numel()) or inner(like, **given))
    weights.allocate(network, torch.device("cpu"))
    assert sum(taken) == lm.dims.parameters
    assert not any(parameter.is_meta for parameter in network.parameters())


def test_several_end_tokens_all_stop(lm: DiffusionLM) -> None:
    other = DiffusionLM(lm.family, lm.config | {"eos_token_id": [1, 6, 5]}, lm.model)
    assert (other.eos_token_id, other.stop_token_ids) == (1, {1, 5, 6})
    assert other.block_length == 8


def test_in_bfloat16_the_rotary_frequencies_stay_float32(lm: DiffusionLM, tmp_path: Path) -> None:
    loading.save(lm, tmp_path, dtype="bfloat16")
    loaded = loading.load(tmp_path, device="cpu")
    assert loaded.dtype == torch.bfloat16
    for side in (loaded.model.model.decoder, loaded.model.model.encoder.language_model):
        assert side.rotary_emb.full_attention_inv_freq.dtype == torch.float32
    ours, theirs = (model.model.model.decoder.rotary_emb.sliding_attention_inv_freq for model in (loaded, lm))
    assert torch.equal(ours, theirs)


def test_reads_what_transformers_writes(lm: DiffusionLM, tmp_path: Path) -> None:
    lm.model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert "per_layer_config" in written["text_config"]
    loaded = loading.load(tmp_path, device="cpu")
    _assert_equal(loaded, lm)
    assert loaded.dims == lm.dims


def _assert_equal(one: DiffusionLM, other: DiffusionLM) -> None:
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for (name, buffer), (_, same) in zip(one.model.named_buffers(), other.model.named_buffers(), strict=True):
        assert torch.equal(buffer, same), name


@pytest.mark.parametrize(
    ("part", "field", "value", "said"),
    [
        (None, "tie_word_embeddings", False, "'tie_word_embeddings' is False"),
        (None, "audio_config", {"hidden_size": 4}, "audio_config"),
        (None, "quantization_config", {"bits": 4}, "quantization_config"),
        ("text_config", "use_bidirectional_attention", "all", "'use_bidirectional_attention' is 'all'"),
        ("text_config", "attention_bias", True, "'attention_bias' is True"),
        ("text_config", "num_kv_shared_layers", 2, "num_kv_shared_layers = 2"),
        ("text_config", "layer_types", ["full_attention"], "layer_types"),
        ("text_config", "layer_types", ["full_attention", "sliding_attention"], "the last 'full_attention'"),
        ("text_config", "num_experts", None, "lacks num_experts"),
    ],
)
def test_what_is_not_reproduced_is_refused_by_name(
    part: str | None, field: str, value: Any, said: str, tiny_config: Callable[..., dict[str, Any]]
) -> None:
    config = tiny_config("diffusion_gemma")
    config = config | {field: value} if part is None else config | {part: config[part] | {field: value}}
    with pytest.raises(UnsupportedConfig) as error:
        FAMILY.network(config)
    assert said in str(error.value)


def test_block_length_of_a_manifest_is_the_canvas(tiny_config: Callable[..., dict[str, Any]]) -> None:
    assert FAMILY.network(tiny_config("diffusion_gemma", block_size=16)).arguments["canvas_length"] == 16
    assert FAMILY.network(tiny_config("diffusion_gemma")).arguments["canvas_length"] == 8


@pytest.mark.parametrize(
    ("messages", "options", "text"),
    [
        (
            [("user", " Why is the sky blue? ")],
            {},
            "<bos><|turn>user\nWhy is the sky blue?<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
        ),
        (
            [("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c")],
            {"enable_thinking": False},
            "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\na<turn|>\n<|turn>model\nb<turn|>\n<|turn>user\nc<turn|>\n"
            "<|turn>model\n<|channel>thought\n<channel|>",
        ),
        (
            [("user", "a")],
            {"enable_thinking": True},
            "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\na<turn|>\n<|turn>model\n",
        ),
    ],
)
def test_chat_text(messages: list[tuple[str, str]], options: dict[str, bool], text: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    conversation = [{"role": role, "content": content} for role, content in messages]
    rendered, _ = render_jinja_template(
        [conversation], chat_template=FAMILY.chat_template, add_generation_prompt=True, **options
    )
    assert rendered == [text]


def test_it_is_for_evaluation_only(lm: DiffusionLM) -> None:
    from dare_bench.dare.algorithms import registry

    assert FAMILY.trainer is None
    with pytest.raises(ValueError, match="for evaluation only"):
        lm.logits(torch.tensor([[3, 4]]))
    entries = [entry for several in registry.algorithms().values() for entry in several]
    assert entries
    assert not any("diffusion_gemma" in entry.families for entry in entries)
