"""Families and named checkpoints: detection, sizes, near-miss messages, no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from dare_bench.dare.families import registry
from dare_bench.dare.families.registry import UnknownName, detect, families, get, get_family, models

# Sizes of the released checkpoints: parameters, K/V KiB per token in bf16, LoRA r=64 weights in millions.
SIZES = {
    "llada-8b-base": (8_015_581_184, 512, 167.8),
    "llada-8b-instruct": (8_015_581_184, 512, 167.8),
    "llada-1.5": (8_015_581_184, 512, 167.8),
    "sdar-1.7b-chat": (2_031_739_904, 112, 69.7),
    "sdar-4b-chat": (4_411_424_256, 144, 132.1),
    "sdar-8b-chat": (8_190_735_360, 144, 174.6),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_the_released_checkpoints(name):
    entry = get(name)
    family = get_family(entry.family)
    parameters, kib, millions = SIZES[name]
    assert family.parameters(entry.config) == parameters
    assert family.kv_bytes_per_token(entry.config) == kib * 1024
    assert family.kv_bytes_per_token(entry.config, 4) == 2 * kib * 1024
    assert round(family.dims(entry.config).lora_parameters(64) / 1e6, 1) == millions


def test_linear_weights_of_llada_8b():
    entry = get("llada-8b-instruct")
    dims = get_family("llada").dims(entry.config)
    assert round(dims.layers * dims.linear_per_layer / 1e9, 2) == 6.98  # decoding notes, section 8


@pytest.mark.parametrize("name", models())
def test_every_named_checkpoint_is_detected_as_its_family(name):
    entry = get(name)
    assert entry.name == name
    assert detect(entry.config).name == entry.family
    assert get_family(entry.family).to_transformers(entry.config)["vocab_size"] == entry.config["vocab_size"]


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_counted_parameters_equal_the_built_network(family, tiny, tiny_config):
    built = sum(parameter.numel() for parameter in tiny(family).model.parameters())
    assert get_family(family).parameters(tiny_config(family)) == built


def test_block_lengths_come_from_the_config_else_from_the_family():
    assert get_family("sdar").block_length({}) == 4
    assert get_family("sdar").block_length({"block_size": 16}) == 16
    assert get_family("llada").block_length({"block_size": None}) == 32


def test_attention_kinds_and_ends():
    assert [family.block_causal for family in families().values()] == [False, True]
    assert list(families()) == ["llada", "sdar"]
    assert (get_family("llada").mask_token_id, get_family("llada").eos_token_id) == (126336, 126081)
    assert (get_family("sdar").mask_token_id, get_family("sdar").eos_token_id) == (151669, 151643)


def test_detection_by_architecture():
    assert detect({"architectures": ["SDARForCausalLM"]}).name == "sdar"
    assert detect({"model_type": "llada", "d_model": 8, "architectures": None}).name == "llada"


def test_llada_moe_shares_the_type_and_is_not_taken_for_llada():
    moe = {"model_type": "llada", "architectures": ["LLaDAMoEModelLM"], "num_experts": 64, "hidden_size": 2048}
    with pytest.raises(UnknownName, match=r"unknown model type 'llada / LLaDAMoEModelLM'\. Known: llada, sdar\.$"):
        detect(moe)
    with pytest.raises(UnknownName, match=r"unknown model type 'llada'\. Known"):
        detect({"model_type": "llada", "num_experts": 64, "d_model": 2048})


def test_unknown_types():
    with pytest.raises(UnknownName, match=r"unknown model type 'sdar_moe'\. Did you mean 'sdar'\?"):
        detect({"model_type": "sdar_moe"})
    with pytest.raises(UnknownName, match=r"unknown model type ''\. Known"):
        detect({})


@pytest.mark.parametrize(
    ("call", "name", "near"),
    [(get, "llada-8b-instuct", "llada-8b-instruct"), (get, "tiny_sdar", "tiny-sdar"), (get_family, "sdarr", "sdar")],
)
def test_near_misses(call, name, near):
    with pytest.raises(UnknownName) as error:
        call(name)
    assert error.value.nearest == near
    assert f"Did you mean {near!r}?" in str(error.value)
    assert all(known in str(error.value) for known in error.value.known)


def test_nothing_near():
    with pytest.raises(UnknownName) as error:
        get("qqqqqq")
    assert error.value.nearest is None
    assert str(error.value) == f"unknown model 'qqqqqq'. Known: {', '.join(sorted(models()))}."


def test_a_family_registers_once():
    llada = get_family("llada")
    assert registry.register(llada) is llada
    import dataclasses

    with pytest.raises(ValueError, match="family 'llada' is registered twice"):
        registry.register(dataclasses.replace(llada, block_causal=True))
    assert get_family("llada") is llada


def test_the_registries_load_without_torch():
    code = (
        "import sys; from dare_bench.dare.families import registry as r; r.families(); r.models();"
        "from dare_bench.dare.decoding import config, generation, selectors, schedulers, trajectory, cost;"
        "selectors.selectors(); print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
