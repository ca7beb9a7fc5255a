"""Checkpoints survive a round trip bit for bit; damaged or foreign ones are refused with a useful message."""

from __future__ import annotations

import json
import re

import pytest
import torch
from dare_bench.dare.families import loading
from dare_bench.dare.families.facts import UnsupportedConfig
from dare_bench.dare.families.loading import BadCheckpoint, WeightsNotHere, load, save
from dare_bench.dare.families.registry import UnknownName
from safetensors.torch import load_file, save_file

FAMILIES = ("llada", "sdar")
OFFICIAL = {
    "llada": {
        "model.transformer.wte.weight", "model.transformer.ln_f.weight", "model.transformer.ff_out.weight",
        *(
            f"model.transformer.blocks.{layer}.{part}.weight"
            for layer in range(2)
            for part in ("attn_norm", "ff_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out")
        ),
    },
    "sdar": {
        "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
        *(
            f"model.layers.{layer}.{part}.weight"
            for layer in range(2)
            for part in (
                "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
                "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm",
                "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
            )
        ),
    },
}  # fmt: skip
ONE = {"llada": "model.transformer.blocks.0.ff_out.weight", "sdar": "model.layers.0.mlp.down_proj.weight"}


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def checkpoint(tmp_path, tiny, family):
    """A folder with a small float32 checkpoint."""
    return save(tiny(family, dtype=torch.float32), tmp_path / "model")


def frequencies(lm):
    return lm.model.model.rotary_emb.inv_freq


def test_round_trip_is_bit_identical_under_official_names(checkpoint, tiny, family):
    lm, again = tiny(family, dtype=torch.float32), load(checkpoint, device="cpu")
    assert set(load_file(checkpoint / "model.safetensors")) == OFFICIAL[family]
    ours = again.model.state_dict()
    assert {name: tensor.dtype for name, tensor in ours.items()} == dict.fromkeys(lm.model.state_dict(), torch.float32)
    assert all(torch.equal(tensor, ours[name]) for name, tensor in lm.model.state_dict().items())
    ids = torch.arange(24).reshape(2, 12)
    assert torch.equal(again.logits(ids), lm.logits(ids))
    assert json.loads((checkpoint / "config.json").read_text())["torch_dtype"] == "float32"
    assert not again.model.training
    second = save(again, checkpoint.parent / "second")
    for name in ("config.json", "model.safetensors"):
        assert (second / name).read_bytes() == (checkpoint / name).read_bytes()


def test_bfloat16_keeps_rotary_frequencies_in_float32(tmp_path, tiny, family):
    lm = tiny(family, dtype=torch.float32)
    folder = save(lm, tmp_path / "bf16", dtype=torch.bfloat16)
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    again = load(folder, device="cpu")
    assert again.dtype == torch.bfloat16
    assert all(torch.equal(p, q.to(torch.bfloat16)) for p, q in zip(*_parameters(again, lm), strict=True))
    assert frequencies(again).dtype == torch.float32
    assert torch.equal(frequencies(again), frequencies(lm))
    assert again.logits(torch.arange(8)[None]).dtype == torch.float32
    widened = load(folder, device="cpu", dtype="float32")
    assert widened.dtype == torch.float32
    assert (
        save(widened, tmp_path / "back", dtype=torch.bfloat16).joinpath("model.safetensors").read_bytes()
        == (folder / "model.safetensors").read_bytes()
    )


def _parameters(*models):
    return [[tensor for _, tensor in sorted(lm.model.state_dict().items())] for lm in models]


def test_a_model_built_in_bfloat16_has_float32_frequencies(tiny_config, tiny, family):
    lm = loading.from_config(family, tiny_config(family), seed=0, dtype=torch.bfloat16)
    assert lm.dtype == torch.bfloat16
    assert torch.equal(frequencies(lm), frequencies(tiny(family, dtype=torch.float32)))


def test_random_models_depend_on_the_seed_only(tiny_config, family):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    one, two, other = (loading.from_config(family, tiny_config(family), seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.head_weight, two.head_weight)
    assert not torch.equal(one.head_weight, other.head_weight)


def test_the_pad_row_is_trained(tiny_config, family):
    # pad = EOS; nn.Embedding(padding_idx=...) would drop its gradient
    lm = loading.from_config(family, tiny_config(family), seed=0)
    lm.logits(torch.full((1, 4), lm.pad_token_id)).square().sum().backward()
    assert lm.model.model.embed_tokens.weight.grad[lm.pad_token_id].abs().sum() > 0


def test_shards_with_an_index(checkpoint, family, tiny):
    weights = load_file(checkpoint / "model.safetensors")
    names = sorted(weights)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, held in parts.items():
        save_file({name: weights[name] for name in held}, checkpoint / file)
    (checkpoint / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (checkpoint / loading.INDEX).write_text(json.dumps(index))
    assert torch.equal(load(checkpoint, device="cpu").head_weight, tiny(family, dtype=torch.float32).head_weight)
    (checkpoint / "b.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match=r"missing weight file\(s\) b\.safetensors\.$"):
        load(checkpoint, device="cpu")


def change(checkpoint, edit):
    weights = load_file(checkpoint / "model.safetensors")
    edit(weights)
    save_file(weights, checkpoint / "model.safetensors")


def test_missing_key(checkpoint, family):
    change(checkpoint, lambda weights: weights.pop(ONE[family]))
    with pytest.raises(BadCheckpoint, match=rf"Missing: {re.escape(ONE[family])}; left over: none; other"):
        load(checkpoint, device="cpu")


def test_extra_key(checkpoint):
    change(checkpoint, lambda weights: weights.update({f"model.extra.{i}": torch.zeros(1) for i in range(5)}))
    with pytest.raises(
        BadCheckpoint, match=r"left over: model\.extra\.0, .*model\.extra\.2 and 2 more; other shape: none"
    ):
        load(checkpoint, device="cpu")


def test_wrong_shape(checkpoint, family):
    change(checkpoint, lambda weights: weights.update({ONE[family]: torch.zeros(32, 65)}))
    with pytest.raises(BadCheckpoint, match=rf"{re.escape(ONE[family])} \(32, 65\) != \(32, 64\)"):
        load(checkpoint, device="cpu")


@pytest.mark.parametrize("keep", [0, 5, 200, -10])
def test_truncated_weights(checkpoint, keep):
    data = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(data[:keep])
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors: damaged or not a safetensors file"):
        load(checkpoint, device="cpu")


def test_weights_without_tensors(checkpoint):
    save_file({}, checkpoint / "model.safetensors")
    with pytest.raises(BadCheckpoint, match="the weight files hold no tensors"):
        load(checkpoint, device="cpu")


def test_no_config(checkpoint):
    (checkpoint / "config.json").unlink()
    with pytest.raises(BadCheckpoint, match=r"no config\.json in this folder; a checkpoint is config\.json \+ "):
        load(checkpoint)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not readable as JSON"), ("[1]", "expected an object, found list")]
)
def test_bad_config(checkpoint, text, message):
    (checkpoint / "config.json").write_text(text)
    with pytest.raises(BadCheckpoint, match=message):
        load(checkpoint)


def test_bad_index(checkpoint):
    for text in ("{", "{}", "[]"):
        (checkpoint / loading.INDEX).write_text(text)
        with pytest.raises(BadCheckpoint, match=r"model\.safetensors\.index\.json: "):
            load(checkpoint)


def test_pickled_weights_are_named_and_never_read(checkpoint):
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(
        BadCheckpoint, match=r"missing weight file\(s\) model\.safetensors\. Pickled weights \(pytorch_mod"
    ):
        load(checkpoint, device="cpu")


def test_unknown_hub_id_says_how_to_get_it():
    with pytest.raises(
        WeightsNotHere, match=r"weights of nobody/nothing-here are not on this .*hf download nobody/not"
    ):
        load("nobody/nothing-here")
    with pytest.raises(WeightsNotHere, match=r"hf download nobody/nothing-here --revision 0123abc`"):
        load("nobody/nothing-here", revision="0123abc")
    with pytest.raises(WeightsNotHere, match="GSAI-ML/LLaDA-8B-Instruct"):
        load("llada-8b-instruct")


def test_absent_folders_and_impossible_names():
    with pytest.raises(WeightsNotHere, match=r"^absent/x/y: no such folder; give a folder with config\.json"):
        load("./absent/x/y")
    with pytest.raises(WeightsNotHere, match="is neither a folder nor a hub id"):
        load("owner/na me")
    with pytest.raises(WeightsNotHere, match="shipped model 'absent' is missing from this installation"):
        load("package:absent")


def test_a_misspelt_model_name_gets_a_hint():
    with pytest.raises(
        UnknownName, match=r"unknown model 'tiny-sdra'\. Did you mean 'tiny-sdar'\? Known: .*llada-1\.5, "
    ):
        load("tiny-sdra")


REFUSED = {
    "llada": {
        "activation_type": "gelu", "block_type": "sequential", "block_group_size": 2, "layer_norm_type": "default",
        "layer_norm_with_affine": False, "attention_layer_norm": True, "bias_for_layer_norm": True,
        "include_bias": True, "include_qkv_bias": True, "rope": False, "alibi": True, "multi_query_attention": True,
        "scale_logits": True, "input_emb_norm": True, "weight_tying": True,
    },
    "sdar": {
        "hidden_act": "gelu", "attention_bias": True, "rope_scaling": {"type": "linear", "factor": 2},
        "use_sliding_window": True, "tie_word_embeddings": True,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "field", "value"), [(family, *item) for family, fields in REFUSED.items() for item in fields.items()]
)
def test_switches_that_change_the_computation_are_refused(checkpoint, field, value):
    config = json.loads((checkpoint / "config.json").read_text()) | {field: value}
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedConfig) as error:
        load(checkpoint)
    assert f"config field {field!r} is {value!r}, supported: " in str(error.value)


def test_unknown_family(checkpoint):
    with pytest.raises(UnknownName, match=r"unknown family 'lada'\. Did you mean 'llada'\? Known: .*llada, .*sdar"):
        load(checkpoint, family="lada")


@pytest.mark.parametrize("dtype", ["foo", "int64", "nn"])
def test_unknown_dtypes_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(ValueError, match=rf"dtype: '{dtype}'; allowed: 'auto', 'float32'"):
        load("tiny-sdar", dtype=dtype, device="cpu")


def test_many_prompts_are_encoded_as_one_by_one() -> None:
    lm = load("tiny-sdar", device="cpu")
    chats = [[{"role": "user", "content": text}] for text in ("a", "How many apples?", "漢字")]
    texts, ids = lm.encode_chats(chats)
    assert texts == [lm.render_chat(chat) for chat in chats]
    assert ids == [lm.encode_chat(chat) for chat in chats]
    assert lm.encode_chats([]) == ([], [])
