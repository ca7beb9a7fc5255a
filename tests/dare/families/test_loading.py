"""Checkpoints survive a round trip bit for bit, under exactly the official names, in the dtypes they came in."""

from __future__ import annotations

import json

import pytest
import torch
from dare_bench.dare.families import loading
from dare_bench.dare.families.facts import UnsupportedConfig
from dare_bench.dare.families.loading import BadCheckpoint, load, save
from dare_bench.dare.families.registry import UnknownName
from safetensors.torch import load_file, save_file

NORMS = ("input_layernorm", "post_attention_layernorm")
MAPS = tuple(f"self_attn.{part}_proj" for part in "qkvo")
QK_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
MLP = tuple(f"mlp.{part}_proj" for part in ("gate", "up", "down"))


def decoder(layers, parts, *, biases=(), embedding="embed_tokens"):
    """Names of a decoder: the same weights in every layer, biases of some."""
    return {
        f"model.{embedding}.weight", "model.norm.weight", "lm_head.weight",
        *(f"model.layers.{layer}.{part}.weight" for layer in layers for part in parts),
        *(f"model.layers.{layer}.{part}.bias" for layer in layers for part in biases),
    }  # fmt: skip


def experts(layers, count):
    parts = ("gate_proj", "up_proj", "down_proj")
    return {f"model.layers.{n}.mlp.experts.{e}.{part}.weight" for n in layers for e in range(count) for part in parts}


LLADA = ("attn_norm", "ff_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out")
LLADA2 = (*NORMS, *(f"attention.{part}" for part in ("query_key_value", "dense", "query_layernorm", "key_layernorm")))
SHARED = tuple(f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down"))
# Of the tiny models, written from the released weight indexes.
OFFICIAL = {
    "llada": {
        *(f"model.transformer.{part}.weight" for part in ("wte", "ln_f", "ff_out")),
        *(f"model.transformer.blocks.{layer}.{part}.weight" for layer in range(2) for part in LLADA),
    },
    "dream": decoder(range(2), (*NORMS, *MAPS, *MLP), biases=MAPS[:3]),
    "sdar": decoder(range(2), (*NORMS, *MAPS, *QK_NORMS, *MLP)),
    "autoregressive": decoder(range(2), (*NORMS, *MAPS, *QK_NORMS, *MLP)),
    "sdar_moe": decoder(range(2), (*NORMS, *MAPS, *QK_NORMS, "mlp.gate")) | experts(range(2), 6),
    "llada_moe": decoder(range(2), (*NORMS, *MAPS, *QK_NORMS, "mlp.gate")) | experts(range(2), 6),
    "llada2_moe": decoder(range(3), LLADA2, embedding="word_embeddings")
    | {f"model.layers.0.{part}.weight" for part in MLP}
    | {f"model.layers.{layer}.{part}.weight" for layer in (1, 2) for part in ("mlp.gate", *SHARED)}
    | {f"model.layers.{layer}.mlp.gate.expert_bias" for layer in (1, 2)}
    | experts((1, 2), 8),
}  # fmt: skip
FILES = ("config.json", "model.safetensors")


def same_files(one, other, names=FILES):
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


@pytest.mark.parametrize("family", OFFICIAL, indirect=True)
def test_stored_names_are_the_official_ones(checkpoint, family):
    assert set(load_file(checkpoint / "model.safetensors")) == OFFICIAL[family]


def test_round_trip_is_bit_identical(checkpoint, model, family, tmp_path):
    lm, again = model(family), load(checkpoint, device="cpu")
    ours = again.model.state_dict()
    assert {tensor.dtype for tensor in ours.values()} == {torch.float32}
    assert ours.keys() == lm.model.state_dict().keys()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in lm.model.state_dict().items())
    assert json.loads((checkpoint / "config.json").read_text())["torch_dtype"] == "float32"
    assert not again.model.training
    assert same_files(save(again, tmp_path / "second"), checkpoint)


@pytest.mark.parametrize("family", OFFICIAL, indirect=True)
def test_logits_are_those_of_the_model_that_was_saved(checkpoint, model, family):
    ids = torch.arange(24).reshape(2, 12)
    assert torch.equal(load(checkpoint, device="cpu").logits(ids), model(family).logits(ids))


def frequencies(lm):
    return {name: buffer for name, buffer in lm.model.named_buffers() if name.endswith("inv_freq")}


def test_bfloat16_keeps_rotary_frequencies_and_expert_biases_in_float32(tmp_path, model, family):
    lm = model(family)
    folder = save(lm, tmp_path / "bf16", dtype=torch.bfloat16)
    stored = load_file(folder / "model.safetensors")
    buffers = {name for name in stored if name.endswith(("expert_bias", "layer_scalar", "std_bias", "std_scale"))}
    assert {stored[name].dtype for name in set(stored) - buffers} == {torch.bfloat16}
    again = load(folder, device="cpu")
    assert again.dtype == torch.bfloat16
    wide = frequencies(lm)
    assert wide and frequencies(again).keys() == wide.keys()
    for name, buffer in frequencies(again).items():
        assert buffer.dtype == torch.float32 and torch.equal(buffer, wide[name])
    for name, weight in again.model.named_parameters():
        # The library computes GLM-4's routers in float32, as the released code does.
        assert weight.dtype == (torch.float32 if family == "llada2_moe" and "mlp.gate." in name else torch.bfloat16), (
            name
        )
        assert torch.equal(weight.bfloat16(), lm.model.get_parameter(name).bfloat16()), name
    assert same_files(save(again, tmp_path / "again"), folder)
    widened = load(folder, device="cpu", dtype="float32")
    assert widened.dtype == torch.float32
    assert same_files(save(widened, tmp_path / "back", dtype=torch.bfloat16), folder)


def expert_biases(lm):
    return [buffer for name, buffer in lm.model.named_buffers() if name.endswith("e_score_correction_bias")]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_expert_bias_is_computed_in_float32_and_stored_as_it_came(tmp_path, model, kind):
    folder = save(model("llada2_moe"), tmp_path / "model", dtype="bfloat16")
    weights = load_file(folder / "model.safetensors")
    assert weights["model.layers.1.mlp.gate.expert_bias"].dtype == torch.float32
    weights = {name: tensor.to(kind) if "expert_bias" in name else tensor for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    lm = load(folder, device="cpu")
    assert len(expert_biases(lm)) == 2
    for layer, bias in enumerate(expert_biases(lm), start=1):
        assert bias.dtype == torch.float32 and bias.abs().max() > 0
        assert torch.equal(bias, weights[f"model.layers.{layer}.mlp.gate.expert_bias"].float())
        router = lm.model.get_parameter(f"model.layers.{layer}.mlp.gate.weight")
        assert torch.equal(router, weights[f"model.layers.{layer}.mlp.gate.weight"])
    assert same_files(save(lm, tmp_path / "again"), folder)
    assert all(bias.dtype == torch.float32 for bias in expert_biases(load(folder, device="cpu", dtype="bfloat16")))


def test_what_no_longer_fits_the_stored_dtype_is_stored_as_it_is(tmp_path, model):
    """A router or bias in float32, stored in bfloat16, and trained since."""
    folder = save(model("llada2_moe"), tmp_path / "model", dtype="bfloat16")
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    lm = load(folder, device="cpu")
    router, bias = lm.model.model.layers[1].mlp.gate.weight, expert_biases(lm)[1]
    with torch.no_grad():
        router += 1e-5
        bias += 1e-5
    again = load(save(lm, tmp_path / "again"), device="cpu")
    assert torch.equal(again.model.model.layers[1].mlp.gate.weight, router)
    assert torch.equal(expert_biases(again)[1], bias)
    stored = load_file(tmp_path / "again" / "model.safetensors")
    wide = {"model.layers.1.mlp.gate.weight", "model.layers.2.mlp.gate.expert_bias"}
    assert {name for name, tensor in stored.items() if tensor.dtype == torch.float32} == wide


def test_fused_experts_are_read_in_their_places(tmp_path, model):
    """Expert 3's gate rows, up rows and down matrix, from the stored names."""
    for name in ("sdar_moe", "llada_moe", "llada2_moe"):
        weights = load_file(save(model(name), tmp_path / name) / "model.safetensors")
        fused = load(tmp_path / name, device="cpu").model.model.layers[1].mlp.experts
        gate, up, down = (
            weights[f"model.layers.1.mlp.experts.3.{part}_proj.weight"] for part in ("gate", "up", "down")
        )
        assert torch.equal(fused.gate_up_proj[3], torch.cat([gate, up]))
        assert torch.equal(fused.down_proj[3], down)


def test_a_model_built_in_bfloat16_has_float32_frequencies(model, family):
    lm = loading.from_config(family, model(family).config, seed=0, dtype=torch.bfloat16)
    assert lm.dtype == torch.bfloat16
    assert all(torch.equal(buffer, frequencies(model(family))[name]) for name, buffer in frequencies(lm).items())


def test_a_random_model_in_bfloat16_comes_back(model, family, tmp_path):
    lm = loading.from_config(family, model(family).config, seed=0, dtype=torch.bfloat16)
    again = load(save(lm, tmp_path / "model"), device="cpu").model.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in lm.model.state_dict().items())


def test_random_models_depend_on_the_seed_only(model, family):
    config = model(family).config
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    one, two, other = (loading.from_config(family, config, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.head_weight, two.head_weight)
    assert not torch.equal(one.head_weight, other.head_weight)


@pytest.mark.parametrize("family", OFFICIAL, indirect=True)
def test_the_pad_row_is_trained(model, family):
    # pad = EOS; nn.Embedding(padding_idx=...) would drop its gradient
    lm = loading.from_config(family, model(family).config, seed=0)
    lm.logits(torch.full((1, 4), lm.pad_token_id)).square().sum().backward()
    assert lm.model.model.embed_tokens.weight.grad[lm.pad_token_id].abs().sum() > 0


def test_sharded(tmp_path, model, family, monkeypatch):
    lm = model(family)
    whole, parts = save(lm, tmp_path / "whole"), save(lm, tmp_path / "parts", shard_bytes=20_000)
    files = sorted(path.name for path in parts.glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((parts / loading.INDEX).read_text())
    sizes = {file: load_file(parts / file) for file in files}
    assert index["weight_map"] == {name: file for file, held in sizes.items() for name in held}
    assert index["weight_map"].keys() == load_file(whole / "model.safetensors").keys()
    assert index["metadata"]["total_size"] == sum(t.nbytes for held in sizes.values() for t in held.values())
    assert all(len(held) == 1 or sum(t.nbytes for t in held.values()) <= 20_000 for held in sizes.values())
    monkeypatch.setattr("dare_bench.dare.families.weights.MAPPED_BYTES", 3000)  # every file is reopened a few times
    again = load(parts, device="cpu")
    assert same_files(save(again, tmp_path / "rejoined"), whole)
    names = ("config.json", loading.INDEX, *files)
    assert same_files(save(again, tmp_path / "split", shard_bytes=20_000), parts, names)


class TestTied:
    @pytest.fixture
    def tied(self, tmp_path, tiny_config):
        config = tiny_config("sdar") | {"model_type": "qwen3", "tie_word_embeddings": True}
        return save(loading.from_config("autoregressive", config, seed=0), tmp_path / "tied")

    def add_head(self, folder, change, dtype=torch.float32):
        weights = load_file(folder / "model.safetensors")
        assert "lm_head.weight" not in weights
        head = weights["model.embed_tokens.weight"].to(dtype).clone()
        change(head)
        save_file(weights | {"lm_head.weight": head}, folder / "model.safetensors")

    def test_without_a_head(self, tied):
        lm = load(tied, device="cpu")
        assert lm.head_weight is lm.model.get_input_embeddings().weight

    def test_an_equal_copy_is_accepted(self, tied, tmp_path):
        before = (tied / "model.safetensors").read_bytes()
        self.add_head(tied, lambda head: None)
        lm = load(tied, device="cpu")
        assert lm.head_weight is lm.model.get_input_embeddings().weight
        assert (save(lm, tmp_path / "again") / "model.safetensors").read_bytes() == before
        assert load(tied, device="cpu", dtype="bfloat16").dtype == torch.bfloat16

    def test_another_head_is_refused(self, tied, monkeypatch):
        self.add_head(tied, lambda head: head[-1].add_(1e-3))
        said = r"model\.safetensors: lm_head\.weight differs from the embedding, and config\.json ties them"
        for size in (2**28, 100):  # in one piece, and row by row
            monkeypatch.setattr("dare_bench.dare.families.weights.MAPPED_BYTES", size)
            with pytest.raises(BadCheckpoint, match=said):
                load(tied, device="cpu")

    def test_a_head_of_another_size_is_refused(self, tied):
        weights = load_file(tied / "model.safetensors")
        save_file(weights | {"lm_head.weight": torch.zeros(3, 32)}, tied / "model.safetensors")
        with pytest.raises(BadCheckpoint, match=r"lm_head\.weight \(3, 32\) != \(64, 32\)"):
            load(tied, device="cpu")


class TestFamilyAskedFor:
    def test_the_right_one(self, checkpoint, family):
        assert load(checkpoint, device="cpu", family=family).family.name == family

    def test_another_one(self, checkpoint, family):
        other = "sdar" if family == "llada" else "llada"
        said = rf"config\.json: the checkpoint is of the family {family} \(model_type '.*'\), asked for: {other}; leave"
        with pytest.raises(UnsupportedConfig, match=said):
            load(checkpoint, device="cpu", family=other)

    def test_where_the_config_says_nothing(self, tmp_path, model):
        folder = save(model("sdar"), tmp_path / "model")
        config = json.loads((folder / "config.json").read_text()) | {"model_type": "of_somebody"}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(UnknownName, match=r"unknown model type 'of_somebody'\. Known"):
            load(folder, device="cpu")
        assert load(folder, device="cpu", family="sdar").family.name == "sdar"

    def test_an_unknown_one(self, checkpoint):
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
