"""Adapters: which modules, zero at the start, off = base, merged = live, saved and loaded."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import torch
from dare_bench.dare.families import loading
from dare_bench.dare.families.facts import UnsupportedConfig
from dare_bench.dare.families.loading import BadCheckpoint
from dare_bench.dare.training import adapters
from dare_bench.dare.training.config import LoraConfig
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

IDS = torch.arange(12).view(2, 6) + 40
SEVEN = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.fixture(params=["llada", "sdar"])
def family(request):
    return request.param


@pytest.fixture
def base(tiny, family, tmp_path):
    """A stored base checkpoint."""
    return loading.save(tiny(family), tmp_path / "base")


@pytest.fixture
def fresh(tiny_config):
    """`fresh(family)`: a tiny random model in float32 that a test may change, the same each time."""

    def build(name):
        config = tiny_config("sdar") | {"model_type": "qwen3"} if name == "autoregressive" else tiny_config(name)
        lm = loading.from_config(name, config, seed=0)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for _, weight in sorted(lm.model.named_parameters()):
                if weight.dim() > 1:
                    weight.copy_(torch.randn(weight.shape, generator=generator) * weight.shape[-1] ** -0.5)
        return lm

    return build


def load(folder, adapter="merge"):
    return loading.load(folder, dtype="float32", device="cpu", adapter=adapter)


def move(lm):
    """Adapters as after training: B no longer zero."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in lm.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)


@torch.no_grad()
def logits(lm):
    return lm.logits(IDS)


MIXTURES = ("sdar_moe", "llada_moe", "llada2_moe")
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
# Layers of the tiny models, and the maps that get an adapter there.
TARGETS = {
    "llada": (2, SEVEN), "dream": (2, SEVEN), "sdar": (2, SEVEN), "autoregressive": (2, SEVEN),
    "sdar_moe": (2, ATTENTION), "llada_moe": (2, ATTENTION), "llada2_moe": (3, ATTENTION),
}  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_adapted_modules_are_those_of_the_family(fresh, name):
    layers, parts = TARGETS[name]
    expected = {
        f"model.layers.{layer}.{'self_attn' if part in ATTENTION else 'mlp'}.{part}"
        for layer in range(layers)
        for part in parts
    }
    lm = fresh(name)
    assert set(adapters.inject(lm, LoraConfig(r=4), seed=0)) == expected
    trainable = {parameter for parameter, value in lm.model.named_parameters() if value.requires_grad}
    halves = {f"{module}.lora_{half}.default.weight" for module in expected for half in "AB"}
    assert trainable == halves
    assert sum(p.numel() for p in lm.model.parameters() if p.requires_grad) == lm.dims.lora_parameters(4)


@pytest.mark.parametrize("pattern", [r"model\.layers\.\d+\.mlp", r"model\.h\.\d+\.c_attn"])
def test_targets_that_cannot_be_adapted_are_an_error(base, pattern):
    """A module that is no linear map, and a pattern of another architecture."""
    lm = load(base)
    lm.family = dataclasses.replace(lm.family, lora_targets=pattern)
    with pytest.raises(ValueError, match=r"(?i)target module"):
        adapters.inject(lm, LoraConfig(r=2), seed=0)


def test_equals_the_base_at_the_start(base):
    lm = load(base)
    before = logits(lm)
    adapters.inject(lm, LoraConfig(), seed=0)
    assert torch.equal(logits(lm), before)


def test_on_a_frozen_base_in_bfloat16_adapters_learn_in_float32(base):
    lm = loading.load(base, device="cpu", dtype="bfloat16")
    adapters.inject(lm, LoraConfig(r=4), seed=0)
    dtypes = {name: parameter.dtype for name, parameter in lm.model.named_parameters()}
    learning = {name for name, parameter in lm.model.named_parameters() if parameter.requires_grad}
    assert learning and {dtypes[name] for name in learning} == {torch.float32}
    assert {dtype for name, dtype in dtypes.items() if name not in learning} == {torch.bfloat16}
    move(lm)
    assert lm.hidden(IDS).dtype == torch.bfloat16  # also without autocast, as rollouts run


def test_off_is_the_base_bit_for_bit_and_on_again_afterwards(base):
    lm = load(base)
    before = logits(lm)
    adapters.inject(lm, LoraConfig(r=4), seed=0)
    move(lm)
    live = logits(lm)
    assert (live - before).abs().max() > 0.01
    with adapters.adapters_off(lm):
        assert torch.equal(logits(lm), before)
    assert torch.equal(logits(lm), live)
    assert all(p.requires_grad == ("lora_" in name) for name, p in lm.model.named_parameters())


def test_off_is_left_also_by_an_error(base):
    lm = load(base)
    adapters.inject(lm, LoraConfig(r=4), seed=0)
    move(lm)
    live = logits(lm)
    with pytest.raises(KeyError), adapters.adapters_off(lm):
        raise KeyError
    assert torch.equal(logits(lm), live)


def test_merged_equals_live(base):
    lm = load(base)
    names = [name for name, _ in lm.model.named_parameters()]
    adapters.inject(lm, LoraConfig(r=4, alpha=32), seed=0)
    move(lm)
    live = logits(lm)
    merged = adapters.merge(lm)
    assert (logits(merged) - live).abs().max() < 1e-4
    assert [name for name, _ in merged.model.named_parameters()] == names
    assert all(parameter.requires_grad for parameter in merged.model.parameters())


def test_saved_and_loaded(base, tmp_path, family):
    lm = load(base)
    config = LoraConfig(r=4, alpha=16)
    adapters.inject(lm, config, seed=0)
    move(lm)
    adapters.save_adapter(lm, tmp_path / "adapter", config, str(base))
    live = logits(lm)
    again = load(tmp_path / "adapter")
    assert (logits(again) - live).abs().max() < 1e-4
    described = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == str(base)
    assert (described["r"], described["lora_alpha"], described["auto_mapping"]["family"]) == (4, 16, family)
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_seed_decides_the_start_and_nothing_global_moves(base):
    def matrices(seed):
        lm = load(base)
        adapters.inject(lm, LoraConfig(r=4), seed=seed)
        return {name: p.detach() for name, p in lm.model.named_parameters() if "lora_A" in name}

    state = torch.get_rng_state()
    one, again, other = matrices(1), matrices(1), matrices(2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert all(not torch.equal(one[name], other[name]) for name in one)


class TestWrongAdapter:
    def adapter(self, tiny, family, folder, base, **sizes):
        other = tiny(family, **sizes)
        adapters.inject(other, LoraConfig(r=4), seed=0)
        adapters.save_adapter(other, folder, LoraConfig(r=4), str(base))
        return folder

    def test_of_a_deeper_model(self, tiny, family, base, tmp_path):
        folder = self.adapter(tiny, family, tmp_path / "deep", base, layers=3)
        with pytest.raises(BadCheckpoint, match="the adapter has 42 tensors, its base takes 28"):
            load(folder)

    def test_of_a_wider_model(self, tiny, family, base, tmp_path):
        folder = self.adapter(tiny, family, tmp_path / "wide", base, width=64)
        with pytest.raises(BadCheckpoint, match=r"is \(4, 128\), its base takes \(4, 64\); .*the adapter belongs to"):
            load(folder)

    def test_of_another_family_with_the_same_sizes(self, tiny, family, base, tmp_path):
        folder = self.adapter(tiny, family, tmp_path / "other", base)
        described = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(described | {"auto_mapping": {"family": "dream"}}))
        with pytest.raises(BadCheckpoint, match=f"adapter of family 'dream', its base .* is {family!r}"):
            load(folder)

    def test_without_its_base(self, tiny, family, tmp_path):
        folder = self.adapter(tiny, family, tmp_path / "lost", tmp_path / "nowhere")
        with pytest.raises(loading.WeightsNotHere, match="nowhere"):
            load(folder)


@pytest.mark.parametrize("name", MIXTURES)
class TestExperts:
    CONFIG = LoraConfig(r=2, alpha=6, experts=True)

    def adapted(self, fresh, name):
        lm = fresh(name)
        found = adapters.inject(lm, self.CONFIG, seed=0)
        return lm, found

    def test_both_tensors_of_every_layer_with_experts(self, fresh, name):
        lm, found = self.adapted(fresh, name)
        layers = (1, 2) if name == "llada2_moe" else (0, 1)
        experts = {f"model.layers.{n}.mlp.experts.{part}" for n in layers for part in ("gate_up_proj", "down_proj")}
        assert {target for target in found if ".experts." in target} == experts
        assert sum(p.numel() for p in lm.model.parameters() if p.requires_grad) == lm.dims.lora_parameters(
            2, experts=True
        )

    def test_off_on_merged_and_every_gradient(self, fresh, name):
        before = logits(fresh(name))
        lm, _ = self.adapted(fresh, name)
        assert torch.equal(logits(lm), before)  # B is zero
        move(lm)
        live = logits(lm)
        with adapters.adapters_off(lm):
            assert torch.equal(logits(lm), before)
        assert (live - before).abs().max() > 0.01
        assert torch.equal(logits(lm), live)
        lm.logits(IDS).square().mean().backward()
        used = {p for p, value in lm.model.named_parameters() if value.grad is not None and value.grad.abs().sum() > 0}
        assert used == {p for p, value in lm.model.named_parameters() if "lora_" in p}
        merged = adapters.merge(lm)
        assert (logits(merged) - live).abs().max() < 1e-4
        assert [n for n, _ in merged.model.named_parameters()] == [n for n, _ in fresh(name).model.named_parameters()]

    def test_saved_and_loaded(self, fresh, name, tmp_path):
        base = loading.save(fresh(name), tmp_path / "base")
        lm, found = self.adapted(fresh, name)
        move(lm)
        adapters.save_adapter(lm, tmp_path / "adapter", self.CONFIG, str(base))
        live = logits(lm)
        assert (logits(load(tmp_path / "adapter")) - live).abs().max() < 1e-4
        again = load(tmp_path / "adapter", adapter="live")
        assert torch.equal(logits(again), live)
        assert adapters.adapted(again) == found
        change(tmp_path / "adapter", lambda held: held.pop(next(n for n in sorted(held) if "experts.base_layer" in n)))
        with pytest.raises(BadCheckpoint, match=r"experts\.base_layer\.lora_A\.weight is missing"):
            load(tmp_path / "adapter")

    def test_peft_reads_it(self, fresh, name, tmp_path):
        lm, _ = self.adapted(fresh, name)
        move(lm)
        adapters.save_adapter(lm, tmp_path / "adapter", self.CONFIG, "somewhere")
        other = fresh(name)
        PeftModel.from_pretrained(other.model, str(tmp_path / "adapter"))
        assert torch.equal(logits(other), logits(lm))

    def test_dropout_is_refused(self, fresh, name):
        with pytest.raises(UnsupportedConfig, match=r"dropout is 0\.1 with peft\.experts.*set dropout to 0"):
            adapters.inject(fresh(name), LoraConfig(r=2, dropout=0.1, experts=True), seed=0)


def test_experts_of_a_dense_network_are_refused(fresh):
    with pytest.raises(UnsupportedConfig, match=r"sdar: peft\.experts is true and the network has no experts"):
        adapters.inject(fresh("sdar"), LoraConfig(experts=True), seed=0)


def change(folder, edit):
    weights = load_file(folder / "adapter_model.safetensors")
    edit(weights)
    save_file(weights, folder / "adapter_model.safetensors")


def describe(folder, **fields):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.fixture
def stored(base, tmp_path):
    """An adapter with B set, beside its base, and its logits."""
    lm = load(base)
    adapters.inject(lm, LoraConfig(r=4, alpha=16), seed=0)
    move(lm)
    adapters.save_adapter(lm, tmp_path / "adapter", LoraConfig(r=4, alpha=16), str(base))
    return tmp_path / "adapter", logits(lm)


class TestFormat:
    def test_files_are_peft_s(self, stored, base):
        folder, live = stored
        settings = PeftConfig.from_pretrained(str(folder))
        assert (settings.r, settings.lora_alpha, settings.bias, settings.inference_mode) == (4, 16, "none", True)
        names = set(load_file(folder / "adapter_model.safetensors"))
        assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in names
        assert all(re.fullmatch(r"base_model\.model\.model\.layers\.\d\..+\.lora_[AB]\.weight", n) for n in names)
        lm = load(base)
        PeftModel.from_pretrained(lm.model, str(folder))
        assert torch.equal(logits(lm), live)

    def test_live_can_be_switched_off(self, stored, base):
        folder, live = stored
        lm = load(folder, adapter="live")
        assert torch.equal(logits(lm), live)
        with adapters.adapters_off(lm):
            assert torch.equal(logits(lm), logits(load(base)))
        trainable = {name for name, parameter in lm.model.named_parameters() if parameter.requires_grad}
        assert trainable == {name for name, _ in lm.model.named_parameters() if "lora_" in name}

    @pytest.mark.parametrize("adapter", ["merge", "live"])
    @pytest.mark.parametrize(
        "options",
        [
            {"target_modules": ["q_proj", "down_proj"]},
            {"target_modules": r".*\.(v|o)_proj", "use_rslora": True},
            {"target_modules": "all-linear", "rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 3}},
            {"target_modules": ["q_proj", "k_proj"], "alpha_pattern": {"layers.0.self_attn.q_proj": 1}, "use_rslora": True},
            {"target_modules": ["up_proj"], "layers_to_transform": [1]},
        ],
    )  # fmt: skip
    def test_adapters_of_peft_users(self, base, tmp_path, options, adapter):
        lm = load(base)
        wrapped = get_peft_model(lm.model, PeftConfig(r=4, lora_alpha=6, **options))
        move(lm)
        wrapped.peft_config["default"].base_model_name_or_path = str(base)
        wrapped.save_pretrained(str(tmp_path / "theirs"))
        again = load(tmp_path / "theirs", adapter=adapter)
        assert (logits(again) - logits(lm)).abs().max() < 1e-4
        assert logits(load(base)).sub(logits(lm)).abs().max() > 1e-3
        change(tmp_path / "theirs", lambda held: [held.pop(n) for n in sorted(held) if "layers.1" in n])
        with pytest.raises(BadCheckpoint, match=r"Missing modules: model\.layers\.1\."):
            load(tmp_path / "theirs")

    def test_bytes_depend_on_the_weights_only(self, stored, base, tmp_path):
        lm = load(stored[0], adapter="live")
        adapters.save_adapter(lm, tmp_path / "again", LoraConfig(r=4, alpha=16), str(base))
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            assert (tmp_path / "again" / file).read_bytes() == (stored[0] / file).read_bytes()


#: Official modules that an adapter has, and what its settings name them by.
CASES = {
    # Released LLaDA has only these four of the usual list: its others are `ff_proj`, `attn_out` and `ff_out`.
    "llada": (r"model\.transformer\.blocks\.\d+\.(q|k|v|up)_proj", sorted(SEVEN)),
    "sdar": (r"model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj", sorted(SEVEN)),
    "dream": (r"model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj", "all-linear"),
    "sdar_moe": (r"model\.layers\.\d+\.(self_attn\..+|mlp\.experts\.\d+\.\w+)_proj", "all-linear"),
    "llada_moe": (r"model\.layers\.\d+\.mlp\.experts\.\d+\.down_proj", ["down_proj"]),
    "llada2_moe": (r"model\.layers\.\d+\.(attention\.(query_key_value|dense)|mlp\..+_proj)", "all-linear"),
}  # fmt: skip


class TestOfficialNames:
    """Adapters trained on the released code, whose modules have other names."""

    def write(self, folder, base, pairs, **settings):
        folder.mkdir()
        described = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2, "lora_alpha": 4, **settings}
        (folder / "adapter_config.json").write_text(json.dumps(described))
        held = {}
        for module, (a, b) in pairs.items():
            held[f"base_model.model.{module}.lora_A.weight"] = a
            held[f"base_model.model.{module}.lora_B.weight"] = b
        save_file(held, folder / "adapter_model.safetensors")
        return folder

    def pairs(self, base, targets):
        """Random adapters of official matrices, and the official weights they lead to (scale 2)."""
        weights = load_file(base / "model.safetensors")
        pattern, found = re.compile(targets), {}
        for index, name in enumerate(sorted(weights)):
            module = name.removesuffix(".weight")
            if pattern.fullmatch(module):
                generator = torch.Generator().manual_seed(index)
                rows, width = weights[name].shape
                a, b = (torch.randn(shape, generator=generator) * 0.1 for shape in ((2, width), (rows, 2)))
                found[module] = (a, b)
                weights[name] = weights[name] + 2 * b @ a
        return found, weights

    @pytest.mark.parametrize("name", CASES)
    def test_merged_weights(self, fresh, tmp_path, name):
        base = loading.save(fresh(name), tmp_path / "base")
        pattern, targets = CASES[name]
        pairs, expected = self.pairs(base, pattern)
        folder = self.write(tmp_path / "adapter", base, pairs, target_modules=targets)
        again = loading.save(load(folder), tmp_path / "merged")
        merged = load_file(again / "model.safetensors")
        assert set(merged) == set(expected)
        assert max((merged[key] - expected[key]).abs().max() for key in merged) < 1e-6
        lost = sorted(pairs)[-1]
        change(folder, lambda held: [held.pop(f"base_model.model.{lost}.lora_{half}.weight") for half in "AB"])
        with pytest.raises(BadCheckpoint, match=f"Missing modules: {re.escape(lost)}; not in the base: none"):
            load(folder)

    @pytest.mark.parametrize("name", ["llada", "llada2_moe"])
    def test_live(self, fresh, tmp_path, name):
        base = loading.save(fresh(name), tmp_path / "base")
        pattern = {"llada": CASES["llada"][0], "llada2_moe": r"model\.layers\.\d+\.attention\.query_key_value"}[name]
        pairs, _ = self.pairs(base, pattern)
        folder = self.write(tmp_path / "adapter", base, pairs, target_modules=["q_proj", "query_key_value"])
        if name == "llada":
            with pytest.raises(BadCheckpoint, match=r"not in the base|Missing"):
                self.write(tmp_path / "less", base, {"model.transformer.blocks.7.q_proj": next(iter(pairs.values()))})
                load(tmp_path / "less")
        live, merged = load(folder, adapter="live"), load(folder)
        assert (logits(live) - logits(merged)).abs().max() < 1e-4
        with adapters.adapters_off(live):
            assert torch.equal(logits(live), logits(fresh(name)))

    def test_one_expert_is_merged_only(self, fresh, tmp_path):
        base = loading.save(fresh("sdar_moe"), tmp_path / "base")
        pairs, _ = self.pairs(base, CASES["sdar_moe"][0])
        folder = self.write(tmp_path / "adapter", base, pairs, target_modules="all-linear")
        with pytest.raises(BadCheckpoint, match=r"one expert of a fused tensor.*load it with adapter='merge'"):
            load(folder, adapter="live")


class TestRefused:
    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"peft_type": "LOHA"}, r"peft_type is 'LOHA', supported: 'LORA'"),
            ({"use_dora": True}, r"not supported: use_dora = True; merge it with"),
            ({"modules_to_save": ["lm_head"]}, r"modules_to_save = \['lm_head'\]"),
            ({"bias": "all"}, r"bias = 'all'"),
            ({"init_lora_weights": "pissa"}, r"init_lora_weights = 'pissa'"),
            ({"some_new_switch": 3}, r"some_new_switch = 3"),
            ({"r": "4"}, r"adapter_config\.json: r is '4', expected int"),
            ({"r": 0}, r"r is 0, expected at least 1"),
            ({"lora_alpha": None}, r"lora_alpha is None, expected int or float"),
            ({"rank_pattern": [1]}, r"rank_pattern is \[1\], expected dict or null"),
            ({"base_model_name_or_path": None}, r"base_model_name_or_path is None; write the base's folder"),
        ],
    )
    def test_settings(self, stored, fields, said):
        describe(stored[0], **fields)
        with pytest.raises(BadCheckpoint, match=said):
            load(stored[0])

    @pytest.mark.parametrize(
        ("text", "said"), [("{", "not readable as JSON"), ("[]", "expected an object, found list")]
    )
    def test_no_settings(self, stored, text, said):
        (stored[0] / "adapter_config.json").write_text(text)
        with pytest.raises(BadCheckpoint, match=rf"adapter_config\.json: {said}"):
            load(stored[0])

    def test_a_tensor_less(self, stored):
        one = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"
        change(stored[0], lambda held: held.pop(one))
        with pytest.raises(BadCheckpoint, match=rf"adapter_model\.safetensors: {re.escape(one)} is missing"):
            load(stored[0])

    @pytest.mark.parametrize(
        "name", ["model.embed_tokens.lora_embedding_A", "model.q_proj.lora_magnitude_vector.weight"]
    )
    def test_other_tensors(self, stored, name):
        change(stored[0], lambda held: held.update({f"base_model.model.{name}": torch.ones(2)}))
        with pytest.raises(BadCheckpoint, match=rf"{re.escape(name)} is no LoRA matrix.*merge_and_unload"):
            load(stored[0])

    def test_nan(self, stored):
        change(stored[0], lambda held: next(iter(held.values())).fill_(torch.nan))
        with pytest.raises(BadCheckpoint, match=r"holds torch\.float32 values or NaN"):
            load(stored[0])

    def test_pickle_and_damage(self, stored):
        file = stored[0] / "adapter_model.safetensors"
        file.write_bytes(file.read_bytes()[:100])
        with pytest.raises(BadCheckpoint, match=r"adapter_model\.safetensors: damaged or not a safetensors file"):
            load(stored[0])
        file.rename(stored[0] / "adapter_model.bin")
        with pytest.raises(BadCheckpoint, match=r"missing weight file adapter_model\.safetensors\. Pickled weights"):
            load(stored[0])

    def test_an_adapter_that_is_its_own_base(self, stored):
        describe(stored[0], base_model_name_or_path=str(stored[0]))
        with pytest.raises(BadCheckpoint, match="the adapter is its own base"):
            load(stored[0])

    def test_beside_whole_weights(self, stored, base):
        (stored[0] / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes())
        with pytest.raises(BadCheckpoint, match=r"holds both model\.safetensors and adapter_model\.safetensors"):
            load(stored[0])


def test_an_unknown_mode_is_refused(stored):
    with pytest.raises(ValueError, match="adapter: 'off'; allowed: 'merge' or 'live'"):
        load(stored[0], adapter="off")


def test_an_adapter_on_an_adapter(stored, base, tmp_path):
    """The lower one is folded in first."""
    upper = load(stored[0])
    adapters.inject(upper, LoraConfig(r=2), seed=9)
    move(upper)
    adapters.save_adapter(upper, tmp_path / "upper", LoraConfig(r=2), str(stored[0]))
    assert (logits(load(tmp_path / "upper")) - logits(upper)).abs().max() < 1e-4


def test_a_base_in_the_hub_cache_is_named_by_id_and_commit(tiny, tmp_path, monkeypatch):
    cache = tmp_path / "hub"
    base = loading.save(tiny("sdar"), cache / "models--some--model" / "snapshots" / ("a" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    lm = load(base)
    adapters.inject(lm, LoraConfig(r=2), seed=0)
    adapters.save_adapter(lm, tmp_path / "adapter", LoraConfig(r=2), str(base))
    described = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (described["base_model_name_or_path"], described["revision"]) == ("some/model", "a" * 40)
    assert torch.equal(logits(load(tmp_path / "adapter")), logits(lm))
