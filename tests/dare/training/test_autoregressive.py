"""TRL's trainers under this project's protocol: they learn, they resume bit for bit, and they leave nothing behind."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from dare_bench.dare.algorithms.registry import get
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.families import loading
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.training.autoregressive import train
from dare_bench.dare.training.config import LoraConfig, TrainConfig
from dare_bench.dare.training.data import TooLong, encode
from dare_bench.dare.training.mixture import Phase
from dare_bench.dare.training.progress import Diverged
from dare_bench.dare.training.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(["0 1"], "autoregressive", vocab_size=259, chat_template="{{ messages[0]['content'] }}")
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 259, "eos_token_id": TOKENIZER.eos_token_id, "rope_theta": 10000.0,
    "initializer_range": 0.2, "tie_word_embeddings": True,
}  # fmt: skip
LORA = LoraConfig(r=4, alpha=8, dropout=0.2)


def model(kind: str = "qwen3") -> DiffusionLM:
    config = SIZES | {"model_type": kind} | ({"head_dim": 8} if kind == "qwen3" else {})
    lm = loading.from_config("autoregressive", config, seed=0)
    return DiffusionLM(lm.family, lm.config, lm.model, TOKENIZER)


def algorithm(name: str, **options):
    entry = get(name, "autoregressive")
    return entry.cls(entry.config_class(**options))


@pytest.fixture
def examples(examples):
    return [{**row, "chosen": row["completion"], "rejected": "x" * (1 + i % 4)} for i, row in enumerate(examples)]


def letters(prompts, completions, answer, **columns):
    """Share of characters below 'P'; the columns of the examples arrive."""
    assert len(answer) == len(prompts) == len(completions)
    assert all(prompt[0]["content"].strip().split()[0] == own for prompt, own in zip(prompts, answer, strict=True))
    texts = [completion[0]["content"] for completion in completions]
    return [sum(character < "P" for character in text) / max(len(text), 1) for text in texts]


@pytest.fixture
def run(examples, tmp_path):
    def go(lm, algorithm, config, *, out="run", die_at=None, data=None, **options):
        found = SimpleNamespace(points={}, resumed=[], result=None, lm=lm, out=tmp_path / out)

        def on_point(step, metrics, timing):
            if step == die_at:
                raise KeyboardInterrupt
            assert timing["wall_s"] > 0
            found.points[step] = metrics

        if algorithm.needs.rollout != "none":
            options = {"reward_funcs": [letters], "decoder": DecoderConfig(gen_length=6)} | options
        try:
            found.result = train(
                lm,
                algorithm,
                examples if data is None else data,
                config,
                seed=5,
                out_dir=tmp_path / out,
                base="b",
                on_point=on_point,
                on_resume=found.resumed.append,
                **options,
            )
        except KeyboardInterrupt:
            assert die_at is not None
        return found

    return go


COMMON = {"batch_size": 4, "lr": 1e-2, "checkpoint_every": 2, "schedule": "wsd", "warmup_steps": 2}
CASES = {
    "sft": ("qwen3", "sft", {}, TrainConfig(steps=7, micro_batch_size=2, **COMMON)),
    "sft, lora": ("qwen2", "sft", {}, TrainConfig(steps=7, peft=LORA, **COMMON)),
    "dpo": ("qwen2", "dpo", {}, TrainConfig(steps=7, **COMMON)),
    "dpo, lora": ("qwen3", "dpo", {}, TrainConfig(steps=7, peft=LORA, micro_batch_size=2, **COMMON)),
    "grpo": ("qwen3", "grpo", {"group_size": 2}, TrainConfig(steps=7, micro_batch_size=4, **COMMON)),
    "grpo, two passes, reference": (
        "qwen2",
        "grpo",
        {"group_size": 2, "inner_iterations": 2, "beta": 0.1},
        TrainConfig(steps=7, micro_batch_size=4, **COMMON),
    ),
    "grpo, lora, reference": (
        "qwen3",
        "grpo",
        {"group_size": 2, "beta": 0.1},
        TrainConfig(steps=7, peft=LORA, **COMMON),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_continues_bit_for_bit(run, case):
    kind, name, options, config = CASES[case]
    straight = run(model(kind), algorithm(name, **options), config, out="straight")
    assert straight.resumed == [0] and sorted(straight.points) == list(range(1, 8))
    assert max(point["grad_norm"] for point in straight.points.values()) > 1e-3

    stopped = run(model(kind), algorithm(name, **options), config, out="stopped", die_at=5)
    assert stopped.result is None
    resumed = run(model(kind), algorithm(name, **options), config, out="stopped")
    assert resumed.resumed == [4]

    for (key, expected), found in zip(
        straight.lm.model.state_dict().items(), resumed.lm.model.state_dict().values(), strict=True
    ):
        assert torch.equal(expected, found), key
    assert {**stopped.points, **resumed.points} == straight.points
    assert resumed.result.sha256 == straight.result.sha256
    totals = [{**each.result.totals, "train_wall_s": 0} for each in (straight, resumed)]
    assert totals[0] == totals[1]
    # Nothing but the checkpoint and the note that it is complete.
    assert sorted(path.name for path in straight.out.iterdir()) == ["final", "finished.json"]


def test_sft_learns_and_its_loss_is_that_of_the_completion(run, examples):
    lm = model()
    config = TrainConfig(steps=40, batch_size=12, lr=1e-2, log_every=10)
    rows = encode(lm, examples, max_length=100)
    total, count = 0.0, 0
    with torch.no_grad():
        for row in rows:
            logits = lm.logits(torch.tensor([[*row.prompt, *row.response]]))[0, len(row.prompt) :]
            total -= float(logits.log_softmax(-1).gather(1, torch.tensor(row.response)[:, None]).sum())
            count += len(row.response)
    found = run(lm, algorithm("sft"), config)
    assert sorted(found.points) == [10, 20, 30, 40]
    first = run(model(), algorithm("sft"), TrainConfig(steps=1, batch_size=12, lr=1e-2), out="first").points[1]["loss"]
    assert first == pytest.approx(total / count, rel=1e-5)
    assert found.points[40]["loss"] < 0.25 * first
    assert found.result.totals["train_tokens"] == 40 * sum(len(row.prompt) + len(row.response) for row in rows)
    assert found.result.totals["samples_seen"] == 480 and found.result.totals["updates"] == 40
    assert found.result.totals["train_flops"] == 6 * lm.dims.active * found.result.totals["train_tokens"]
    loaded = loading.load(found.result.path)
    assert torch.equal(loaded.head_weight, lm.head_weight) and loaded.tokenizer is not None


def test_micro_batches_change_nothing_beyond_rounding(run):
    config = TrainConfig(steps=3, batch_size=4, lr=1e-3)
    whole = run(model(), algorithm("sft"), config, out="whole")
    parts = run(model(), algorithm("sft"), TrainConfig(**{**vars(config), "micro_batch_size": 1}), out="parts")
    for one, other in zip(whole.lm.model.parameters(), parts.lm.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3)


def test_dpo_separates_the_pairs(run):
    found = run(model(), algorithm("dpo"), TrainConfig(steps=15, batch_size=12, lr=3e-3))
    assert found.points[1]["loss"] == pytest.approx(0.693147, abs=1e-4)  # policy = reference: log 2
    assert found.points[15]["loss"] < 0.2 and found.points[15]["rewards/margins"] > 1
    tokens = found.result.totals["train_tokens"]
    assert found.result.totals["train_flops"] == 8 * found.lm.dims.active * tokens  # 6 policy, 2 reference


def test_grpo_raises_a_reward(run):
    config = TrainConfig(steps=30, batch_size=8, lr=1e-2)
    found = run(model(), algorithm("grpo", group_size=8), config)
    rewards = [point["reward"] for point in found.points.values()]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2
    totals = found.result.totals
    assert totals["samples_seen"] == 30 * 64
    assert totals["rollout_tokens"] == totals["rollout_nfe"] > 30 * 64
    assert 0 < totals["rollout_flops"] < totals["train_flops"]


def test_lora_trains_adapters_only_and_is_loaded_like_any_other(run, tmp_path):
    base = model()
    loading.save(base, tmp_path / "base")
    before = {name: weight.clone() for name, weight in base.model.state_dict().items()}
    found = run(base, algorithm("sft"), TrainConfig(steps=5, batch_size=4, lr=1e-2, peft=LORA))
    for name, weight in base.model.state_dict().items():
        if "lora_" not in name:
            assert torch.equal(weight, before[name.replace(".base_layer", "")]), name
    config = found.result.path / "adapter_config.json"
    config.write_text(config.read_text().replace('"b"', f'"{tmp_path / "base"}"'))
    merged = loading.load(found.result.path)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(merged.logits(ids), base.logits(ids), atol=1e-4, rtol=1e-4)
        fresh = model().logits(ids)
    assert float((merged.logits(ids) - fresh).abs().max()) > 0.01


def test_curriculum_and_early_end(run, examples):
    data = [{**row, "source": "a" if index < 6 else "b"} for index, row in enumerate(examples)]
    phases = [Phase(0.5, {"a": 1.0}), Phase(1.0, {"b": 1.0})]
    config = TrainConfig(steps=8, batch_size=2, select="step:3", schedule="cosine", lr=1e-3)
    found = run(model(), algorithm("sft"), config, data=data, phases=phases)
    assert found.result.step == 3 and sorted(found.points) == [1, 2, 3]
    assert found.points[3]["lr"] == pytest.approx(1e-3 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * 2 / 8)).item()))
    again = run(model(), algorithm("sft"), config, data=data, phases=phases)  # finished: nothing is trained again
    assert again.resumed == [3] and again.points == {} and again.result == found.result


def test_bfloat16_and_gradient_checkpointing_run(run):
    config = TrainConfig(steps=2, batch_size=4, dtype="bfloat16", gradient_checkpointing=True, lr=1e-3)
    for name, options in (("sft", {}), ("dpo", {}), ("grpo", {"group_size": 2})):
        found = run(model(), algorithm(name, **options), config, out=name)
        assert len(found.points) == 2 and next(found.lm.model.parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("sft", {"optimizer": "muon"}, "optimizer: 'muon'; allowed: adamw"),
        ("sft", {"pad_blocks": 2}, "pad_blocks: 2; allowed: 0"),
        ("sft", {"batch_size": 4, "micro_batch_size": 3}, "micro_batch_size: 3; allowed: a divisor of the 4 rows"),
        ("grpo", {"batch_size": 3, "micro_batch_size": 5}, "a divisor of the 24 rows"),
    ],
)
def test_settings_without_a_counterpart_are_refused(run, name, config, said):
    with pytest.raises(ValueError, match=said):
        run(model(), algorithm(name), TrainConfig(steps=1, **config))


def test_long_examples_missing_pairs_and_nan_are_refused(run, examples):
    with pytest.raises(TooLong, match="max_length is 5"):
        run(model(), algorithm("sft"), TrainConfig(steps=1, max_length=5))
    long = [{**row, "rejected": "y" * 50} for row in examples]
    with pytest.raises(TooLong, match="max_length is 30"):
        run(model(), algorithm("dpo"), TrainConfig(steps=1, max_length=30), data=long)
    bare = [{key: value for key, value in row.items() if key != "rejected"} for row in examples]
    with pytest.raises(ValueError, match="has no 'rejected' answer"):
        run(model(), algorithm("dpo"), TrainConfig(steps=1), data=bare)
    with pytest.raises(ValueError, match="reward_funcs and a decoder"):
        run(model(), algorithm("grpo"), TrainConfig(steps=1), reward_funcs=[])
    broken = model()
    with torch.no_grad():
        next(broken.model.parameters()).fill_(float("nan"))
    with pytest.raises(Diverged, match="step 1"):
        run(broken, algorithm("sft"), TrainConfig(steps=2), out="broken")
