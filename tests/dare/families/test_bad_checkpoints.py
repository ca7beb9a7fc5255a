"""Damaged, incomplete and foreign checkpoints: each a clear error that names file, tensor or field, and the next step."""

from __future__ import annotations

import json
import re

import pytest
import torch
from dare_bench.dare.families import loading
from dare_bench.dare.families.facts import UnsupportedConfig
from dare_bench.dare.families.loading import BadCheckpoint, load
from safetensors.torch import load_file, save_file

FIRST = {
    "llada": "model.transformer.blocks.0.ff_out.weight",
    "diffusion_gemma": "model.decoder.layers.0.mlp.down_proj.weight",
    **dict.fromkeys(("sdar", "dream", "autoregressive", "llada2_moe"), "model.layers.0.mlp.down_proj.weight"),
    **dict.fromkeys(("sdar_moe", "llada_moe"), "model.layers.0.mlp.experts.5.down_proj.weight"),
}

#: Calls pytest.fail when it is read.
PICKLE = b"cpytest\nfail\n(S'a pickle was read'\ntR."


@pytest.fixture
def one(family):
    """Name of a stored matrix."""
    return FIRST[family]


def change(checkpoint, edit, file="model.safetensors"):
    weights = load_file(checkpoint / file)
    edit(weights)
    save_file(weights, checkpoint / file)


def refused(checkpoint, said):
    with pytest.raises(BadCheckpoint, match=said):
        load(checkpoint, device="cpu")


class TestTensors:
    def test_missing(self, checkpoint, one):
        change(checkpoint, lambda weights: weights.pop(one))
        refused(
            checkpoint, rf"Missing: {re.escape(one)}; left over: none; other shape: none\. Fetch the checkpoint again"
        )

    def test_left_over(self, checkpoint):
        change(checkpoint, lambda weights: weights.update({f"model.extra.{i}": torch.zeros(1) for i in range(5)}))
        refused(
            checkpoint, r"left over: model\.extra\.0 \(model\.safetensors\), .*model\.extra\.2 .* and 2 more; other"
        )

    def test_of_another_shape(self, checkpoint, one):
        rows, width = load_file(checkpoint / "model.safetensors")[one].shape
        change(checkpoint, lambda weights: weights.update({one: torch.zeros(rows, width + 1)}))
        shapes = rf"\({rows}, {width + 1}\) != \({rows}, {width}\) \(model\.safetensors\)"
        refused(checkpoint, rf"{re.escape(one)} {shapes}")

    @pytest.mark.parametrize(
        ("kind", "said"), [(torch.int64, "I64"), (torch.uint8, "U8"), (torch.bool, "BOOL"), (torch.float8_e4m3fn, "F8")]
    )
    def test_that_is_no_plain_floating_point(self, checkpoint, one, kind, said):
        change(checkpoint, lambda weights: weights.update({one: weights[one].to(kind)}))
        refused(
            checkpoint, rf"model\.safetensors: {re.escape(one)} holds {said}\w* values, supported: F64, .*bfloat16 fi"
        )

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    @pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
    def test_that_is_not_finite(self, checkpoint, one, value, kind):
        def edit(weights):
            for name in weights:
                weights[name] = weights[name].to(kind)
            weights[one][-1, -1] = value

        change(checkpoint, edit)
        refused(checkpoint, rf"model\.safetensors: {re.escape(one)} holds NaN or infinite values; .*fetch it again")

    def test_none_at_all(self, checkpoint):
        save_file({}, checkpoint / "model.safetensors")
        refused(checkpoint, "the weight files hold no tensors; fetch the checkpoint again")


@pytest.mark.parametrize("family", ["llada", "sdar_moe"], indirect=True)
class TestFiles:
    @pytest.fixture
    def sharded(self, checkpoint, model, family):
        """Two files with an index."""
        weights = load_file(checkpoint / "model.safetensors")
        (checkpoint / "model.safetensors").unlink()
        names = sorted(weights)
        parts = {"a.safetensors": names[:7], "b.safetensors": names[7:]}
        for file, held in parts.items():
            save_file({name: weights[name] for name in held}, checkpoint / file)
        self.index(checkpoint, {name: file for file, held in parts.items() for name in held})
        assert torch.equal(load(checkpoint, device="cpu").head_weight, model(family).head_weight)
        return checkpoint

    def index(self, folder, places):
        (folder / loading.INDEX).write_text(json.dumps({"weight_map": places}))

    @pytest.mark.parametrize("keep", [0, 5, 200, -10])
    @pytest.mark.parametrize("file", ["model", "b"])
    def test_truncated(self, request, family, file, keep):
        folder = request.getfixturevalue("checkpoint" if file == "model" else "sharded")
        path = folder / f"{file}.safetensors"
        path.write_bytes(path.read_bytes()[:keep])
        refused(folder, rf"{file}\.safetensors: damaged or not a safetensors file .*; fetch it again")

    def test_a_missing_shard(self, sharded):
        (sharded / "b.safetensors").unlink()
        refused(sharded, r"missing weight file\(s\) b\.safetensors\. Fetch them again\.")

    def test_a_tensor_in_two_shards(self, sharded):
        name = next(iter(load_file(sharded / "a.safetensors")))
        change(sharded, lambda weights: weights.update({name: torch.zeros(1)}), "b.safetensors")
        refused(
            sharded,
            rf"b\.safetensors: tensor '{re.escape(name)}' is stored in two files, also in a\.safetensors; fetch",
        )

    @pytest.mark.parametrize("place", ["../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ""])
    def test_an_index_that_leaves_the_folder(self, sharded, place):
        self.index(sharded, {"x": place})
        refused(sharded, rf"index\.json: names '{re.escape(place)}'; weight files lie beside their index")

    @pytest.mark.parametrize(
        "text", ["{", "{}", "[]", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"x": 1}}']
    )
    def test_an_index_that_is_none(self, checkpoint, text):
        (checkpoint / loading.INDEX).write_text(text)
        refused(checkpoint, r"model\.safetensors\.index\.json: not a weight index, expected \{weight_map")

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
    def test_pickled_weights_are_named_and_never_read(self, checkpoint, name):
        (checkpoint / "model.safetensors").unlink()
        (checkpoint / name).write_bytes(PICKLE)
        refused(
            checkpoint, rf"missing weight file\(s\) model\.safetensors\. Pickled weights \({re.escape(name)}\) are nev"
        )

    def test_a_pickle_under_the_right_name(self, checkpoint):
        (checkpoint / "model.safetensors").write_bytes(PICKLE)
        refused(checkpoint, r"model\.safetensors: damaged or not a safetensors file")

    def test_no_config(self, checkpoint):
        (checkpoint / "config.json").unlink()
        refused(checkpoint, r"no config\.json in this folder; a checkpoint is config\.json \+ ")


def set_config(checkpoint, **fields):
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | fields))


@pytest.mark.parametrize("family", ["sdar"], indirect=True)
class TestConfigFile:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("{", "not readable as JSON"),
            ("", "not readable as JSON"),
            ("\xff", "not readable as JSON"),
            ("[1]", "expected an object, found list"),
            ("null", "expected an object, found NoneType"),
            ('{"model_type": 3}', "model_type is 3, expected a text"),
            (
                '{"architectures": "SDARForCausalLM"}',
                "architectures is 'SDARForCausalLM', expected a list of class names",
            ),
            ('{"architectures": [1]}', r"architectures is \[1\], expected a list of class names"),
        ],
    )
    def test_that_is_none(self, checkpoint, text, said):
        (checkpoint / "config.json").write_bytes(text.encode("latin-1"))
        refused(checkpoint, rf"config\.json: {said}")


# Fields that say how large a network is, by family.
QWEN = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "vocab_size")
SIZES = {
    "llada": ("d_model", "n_layers", "n_heads", "mlp_ratio"),
    "dream": QWEN,
    "sdar": QWEN,
    "autoregressive": QWEN,
    "sdar_moe": (*QWEN[:2], *QWEN[3:], "num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "llada_moe": (*QWEN[:2], *QWEN[3:], "num_experts_per_tok", "expert_intermediate_size"),
    "llada2_moe": (*QWEN, "num_experts", "num_experts_per_tok", "moe_intermediate_size"),
}
CASES = [(family, name) for family, names in SIZES.items() for name in names]


def unsupported(checkpoint, said):
    with pytest.raises(UnsupportedConfig, match=rf"config\.json: .*{said}"):
        load(checkpoint, device="cpu")


@pytest.mark.parametrize(("family", "name"), CASES, indirect=["family"])
def test_a_size_that_is_missing(checkpoint, name, family):
    config = json.loads((checkpoint / "config.json").read_text())
    if family == "llada":
        config.pop("mlp_hidden_size")
        config["mlp_ratio"] = 2
    del config[name]
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedConfig, match=rf"config\.json: .*field '{name}' is missing, needed: a whole number"):
        load(checkpoint, device="cpu", family=family)


@pytest.mark.parametrize("value", ["32", 3.5, True, 0, -1, [8]])
@pytest.mark.parametrize(("family", "name"), CASES, indirect=["family"])
def test_a_size_of_another_type(checkpoint, family, name, value):
    set_config(checkpoint, **({"mlp_hidden_size": None, "mlp_ratio": 2} if family == "llada" else {}) | {name: value})
    unsupported(checkpoint, rf"field '{name}' is {re.escape(repr(value))}, needed: a whole number >= 1")


OTHERS = [
    ("sdar", "rms_norm_eps", "1e-6", "a number"),
    ("dream", "rope_theta", "a lot", "a number"),
    ("llada", "rms_norm_eps", None, None),
    ("sdar", "num_key_value_heads", "2", "a whole number"),
    ("sdar", "mask_token_id", "<mask>", "a whole number >= 0"),
    ("llada", "mask_token_id", -5, "a whole number >= 0"),
    ("dream", "eos_token_id", "x", "a whole number >= 0"),
    ("llada2_moe", "eos_token_id", ["x"], "a list of whole numbers"),
    ("sdar_moe", "block_size", "four", "a whole number >= 1"),
    ("sdar_moe", "mlp_only_layers", 3, "a list of whole numbers"),
    ("llada_moe", "moe_layer_freq", "11", "a list of whole numbers"),
    ("llada_moe", "moe_layer_freq", [1], "one for each of 2 layers"),
    ("llada2_moe", "n_group", "4", "a whole number"),
    ("llada2_moe", "routed_scaling_factor", "x", "a number"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "name", "value", "needed"), OTHERS, indirect=["family"])
def test_other_fields_of_another_type(checkpoint, name, value, needed):
    set_config(checkpoint, **{name: value})
    if needed is None:
        assert load(checkpoint, device="cpu").family.name == "llada"  # null = the family's own value
    else:
        unsupported(checkpoint, rf"'{name}' .*{needed}")


@pytest.mark.parametrize("family", ["llada2_moe"], indirect=True)
def test_values_that_only_the_library_can_judge(checkpoint):
    set_config(checkpoint, num_attention_heads=3, num_key_value_heads=2)
    with pytest.raises((BadCheckpoint, UnsupportedConfig), match=r"do not fit the config|refuses the config's values"):
        load(checkpoint, device="cpu")


PLAIN = {"hidden_act": "gelu", "rope_scaling": {"type": "linear", "factor": 2}, "tie_word_embeddings": True}
WINDOW = {"use_sliding_window": True}
REFUSED = {
    "llada": {
        "activation_type": "gelu", "block_type": "sequential", "block_group_size": 2, "layer_norm_type": "default",
        "layer_norm_with_affine": False, "attention_layer_norm": True, "bias_for_layer_norm": True,
        "include_bias": True, "include_qkv_bias": True, "rope": False, "alibi": True, "multi_query_attention": True,
        "scale_logits": True, "input_emb_norm": True, "weight_tying": True,
    },
    "dream": {**PLAIN, **WINDOW, "attention_bias": False, "use_mrope": True, "attention_dropout": 0.1},
    "sdar": {**PLAIN, **WINDOW, "attention_bias": True},
    "sdar_moe": {**PLAIN, **WINDOW, "attention_bias": True, "decoder_sparse_step": 2, "shared_expert_intermediate_size": 8},
    "llada_moe": {
        **PLAIN, "attention_bias": True, "clip_qkv": 8.0, "qk_layernorm": False, "partial_rotary_factor": 0.5,
        "shared_expert_intermediate_size": 8, "moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid",
    },
    "llada2_moe": {
        **PLAIN, **WINDOW, "use_qkv_bias": True, "use_bias": True, "use_qk_norm": False, "score_function": "softmax",
        "moe_router_enable_expert_bias": False, "router_dtype": "bf16", "rotary_dim": 8, "num_nextn_predict_layers": 1,
    },
    "autoregressive": {"hidden_act": "gelu", "rope_scaling": {"type": "yarn"}, **WINDOW, "attention_bias": True},
    "diffusion_gemma": {"tie_word_embeddings": False},
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [(family, *item) for family, fields in REFUSED.items() for item in fields.items()],
    indirect=["family"],
)
def test_switches_that_change_the_computation_are_refused(checkpoint, family, field, value):
    set_config(checkpoint, **{field: value})
    unsupported(checkpoint, rf"{family}.*: config field '{field}' is {re.escape(repr(value))}, supported: ")


def test_switches_nobody_has_looked_at_are_refused(checkpoint):
    set_config(checkpoint, use_new_trick=True, harmless_when_off=False, of_text={"a": 1})
    unsupported(
        checkpoint, r"switches that this mapping does not know: of_text = \{'a': 1\}, use_new_trick = True\. Rem"
    )
