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
    "dream-7b-instruct": (7_615_616_512, 56, 161.5),
    "diffucoder-7b-instruct": (7_615_616_512, 56, 161.5),
    "sdar-30b-a3b-chat": (30_532_122_624, 96, 53.5),
    "llada-moe-instruct": (7_356_880_896, 128, 16.8),
    "llada2.0-mini": (16_255_638_528, 40, 17.0),
    "llada2.1-flash": (102_889_697_280, 64, 52.4),
    "qwen2.5-0.5b-instruct": (494_032_768, 12, 35.2),
    "qwen2.5-1.5b-instruct": (1_543_714_304, 28, 73.9),
    "qwen2.5-3b-instruct": (3_085_938_688, 36, 119.7),
    "qwen2.5-7b-instruct": (7_615_616_512, 56, 161.5),
    "qwen3-0.6b": (596_049_920, 112, 40.4),
    "qwen3-1.7b": (1_720_574_976, 112, 69.7),
    "qwen3-4b": (4_022_468_096, 144, 132.1),
    "qwen3-8b": (8_190_735_360, 144, 174.6),
}
ACTIVE = {
    "sdar-30b-a3b-chat": 3_353_032_704,
    "llada-moe-base": 1_719_736_320,
    "llada2.0-mini": 1_432_968_192,
    "llada2.0-flash": 6_152_269_824,
    "llada-8b-base": 8_015_581_184,
}
# Tensors of the released weight indexes.
NAMES = {
    "llada-8b-instruct": 291,
    "dream-7b-instruct": 339,
    "sdar-4b-chat": 399,
    "sdar-8b-chat": 399,
    "sdar-30b-a3b-chat": 18_867,
    "llada2.0-mini": 14_813,
    "llada2.1-mini": 14_813,
}


@pytest.mark.parametrize("name", ACTIVE)
def test_weights_a_token_passes(name):
    entry = get(name)
    assert get_family(entry.family).dims(entry.config).active == ACTIVE[name]


@pytest.mark.parametrize("name", NAMES)
def test_as_many_official_names_as_in_the_released_index(name):
    entry = get(name)
    names = [official for official, _ in get_family(entry.family).tensors(entry.config)]
    assert len(set(names)) == len(names) == NAMES[name]


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
    assert round(dims.linear / 1e9, 2) == 6.98  # decoding notes, section 8


@pytest.mark.parametrize("name", models())
def test_every_named_checkpoint_is_detected_as_its_family(name):
    entry = get(name)
    assert entry.name == name
    assert detect(entry.config).name == entry.family
    arguments = get_family(entry.family).network(entry.config).arguments
    assert arguments.get("text_config", arguments)["vocab_size"] == get_family(entry.family).dims(entry.config).vocab


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_counted_parameters_equal_the_built_network(family, tiny, tiny_config):
    built = sum(parameter.numel() for parameter in tiny(family).model.parameters())
    assert get_family(family).parameters(tiny_config(family)) == built


def test_block_lengths_come_from_the_config_else_from_the_family():
    assert get_family("sdar").block_length({}) == 4
    assert get_family("sdar").block_length({"block_size": 16}) == 16
    assert get_family("llada").block_length({"block_size": None}) == 32


def test_attention_kinds_and_ends():
    kinds = {name: family.attention for name, family in families().items()}
    assert {name for name, kind in kinds.items() if kind == "block_causal"} == {"sdar", "sdar_moe", "llada2_moe"}
    assert {name for name, kind in kinds.items() if kind == "full"} == {"llada", "llada_moe", "dream"}
    assert list(families()) == sorted(families())
    assert {name: family.shift for name, family in families().items() if family.shift} == {
        "dream": 1,
        "autoregressive": 1,
    }
    ids = {name: (family.mask_token_id, family.eos_token_id) for name, family in families().items()}
    assert ids["llada"] == (126336, 126081)
    assert ids["dream"] == (151666, 151643)
    assert ids["sdar"] == ids["sdar_moe"] == (151669, 151643)
    assert ids["llada_moe"] == ids["llada2_moe"] == (156895, 156892)


def test_detection_by_architecture():
    assert detect({"architectures": ["SDARForCausalLM"]}).name == "sdar"
    assert detect({"model_type": "llada", "d_model": 8, "architectures": None}).name == "llada"


def test_llada_moe_shares_the_type_and_is_not_taken_for_llada():
    moe = {"model_type": "llada", "architectures": ["LLaDAMoEModel"], "num_experts": 64, "hidden_size": 2048}
    assert detect(moe).name == "llada_moe"
    assert detect({"model_type": "llada", "num_experts": 64, "d_model": 2048}).name == "llada_moe"
    assert detect({"model_type": "llada", "d_model": 2048}).name == "llada"
    with pytest.raises(UnknownName, match=r"unknown model type 'llada'\. Known"):
        detect({"model_type": "llada"} | {"hidden_size": 2048} | {"architectures": None, "d_modell": 1})


def test_unknown_types():
    with pytest.raises(UnknownName, match=r"unknown model type 'sdar_mo'\. Did you mean 'sdar_moe'\?"):
        detect({"model_type": "sdar_mo"})
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
        registry.register(dataclasses.replace(llada, shift=1))
    assert get_family("llada") is llada


def test_the_registries_load_without_torch():
    code = (
        "import sys; from dare_bench.dare.families import registry as r; r.families(); r.models();"
        "from dare_bench.dare.decoding import config, generation, selectors, schedulers, trajectory, cost;"
        "selectors.selectors(); print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
