"""Sizes and memory: the published figures of every model, what fits which device, and machines that are not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dare_bench.dare.families.registry import get
from dare_bench.dare.training.config import LoraConfig, TrainConfig
from dare_bench.harness.memory import GIB, Figures, Memory, figures, training
from dare_bench.harness.resolved import Model

# weights, K/V KiB per token, LoRA r=64 weights in millions, LoRA training, full training (GiB), as printed
TABLE = {
    "llada-8b-instruct": ("14.9", 512, "167.8", "17.4", "119"),
    "llada-1.5": ("14.9", 512, "167.8", "17.4", "119"),
    "dream-7b-instruct": ("14.2", 56, "161.5", "16.6", "113"),
    "diffucoder-7b-cpgrpo": ("14.2", 56, "161.5", "16.6", "113"),
    "qwen2.5-7b-instruct": ("14.2", 56, "161.5", "16.6", "113"),
    "sdar-1.7b-chat": ("3.8", 112, "69.7", "4.8", "30"),
    "sdar-4b-chat": ("8.2", 144, "132.1", "10.2", "66"),
    "sdar-8b-chat": ("15.3", 144, "174.6", "17.9", "122"),
    "qwen3-8b": ("15.3", 144, "174.6", "17.9", "122"),
    "sdar-30b-a3b-chat": ("56.9", 96, "53.5", "57.7", "455"),
    "llada-moe-instruct": ("13.7", 128, "16.8", "14.0", "110"),
    "llada2.0-mini": ("30.3", 40, "17.0", "30.5", "242"),
    "llada2.1-flash": ("191.6", 64, "52.4", "192.4", "1533"),
    "qwen2.5-0.5b-instruct": ("0.9", 12, None, None, "7"),
    "qwen2.5-1.5b-instruct": ("2.9", 28, None, None, "23"),
    "qwen2.5-3b-instruct": ("5.7", 36, None, None, "46"),
    "qwen3-0.6b": ("1.1", 112, None, None, "9"),
    "qwen3-1.7b": ("3.2", 112, None, None, "26"),
    "qwen3-4b": ("7.5", 144, None, None, "60"),
}


def _model(name: str) -> Model:
    entry = get(name)
    return Model(name, entry.family, entry.source, None, entry.config)


def _figures(name: str) -> Figures:
    found = figures(_model(name), r=64)
    assert found is not None
    return found


@pytest.mark.parametrize("name", TABLE)
def test_published_figures(name: str) -> None:
    weights, cached, adapters, lora, full = TABLE[name]
    found, model = _figures(name), _model(name)
    family, config = model.facts
    assert f"{found.weights.fixed / GIB:.1f}" == weights
    assert family.kv_bytes_per_token(config) == cached * 1024
    assert f"{found.full.fixed / GIB:.0f}" == full
    if adapters is not None:
        assert f"{family.dims(config).lora_parameters(64) / 1e6:.1f}" == adapters
        assert f"{found.lora.fixed / GIB:.1f}" == lora


def test_adapters_on_experts_cost_more() -> None:
    attention, experts = (figures(_model("llada2.0-mini"), r=32, experts=experts) for experts in (False, True))
    assert attention is not None and experts is not None
    assert experts.lora.fixed - attention.lora.fixed > 14 * 10**9
    assert experts.full == attention.full


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 2)])
def test_states_of_training_are_what_the_trainer_holds(dtype: str, width: int) -> None:
    model = _model("sdar-1.7b-chat")
    count, adapters = 2_031_739_904, 69_730_304
    lora = TrainConfig(dtype=dtype, peft=LoraConfig(r=64))
    assert training(model, lora, tokens=512, needs_reference=True).fixed == width * count + 16 * adapters
    full = TrainConfig(dtype=dtype)
    assert training(model, full, tokens=512, needs_reference=False).fixed == 16 * count
    assert training(model, full, tokens=512, needs_reference=True).fixed == 20 * count  # the reference is a copy


def test_number_of_devices() -> None:
    need = Memory(100, 0, 10)
    assert need.devices(100, doubling=False) == 1
    assert need.devices(60, doubling=False) == 2  # 50 + 10
    assert need.devices(59, doubling=False) == 3 and need.devices(59, doubling=True) == 4
    assert need.devices(11, doubling=True) == 128
    assert need.devices(10, doubling=False) is None


@pytest.mark.parametrize(
    ("name", "part", "gib", "count"),
    [
        *((name, "weights", 24, 1) for name in ("llada-8b-base", "dream-7b-base", "sdar-8b-chat", "llada-moe-base")),
        *((name, "lora", 24, 1) for name in ("sdar-1.7b-chat", "sdar-4b-chat", "llada-8b-base", "sdar-8b-chat")),
        ("sdar-1.7b-chat", "full", 24, 2),
        ("llada2.0-mini", "weights", 24, 2),
        ("llada2.0-mini", "weights", 80, 1),
        ("llada2.0-mini", "lora", 80, 1),
        ("sdar-30b-a3b-chat", "weights", 80, 1),
        ("sdar-1.7b-chat", "full", 80, 1),
        *((name, "full", 80, 2) for name in ("llada-8b-instruct", "dream-7b-instruct", "sdar-8b-chat", "llada-moe-base")),
        ("llada2.1-flash", "weights", 80, 3),
        ("llada2.1-flash", "lora", 80, 4),
    ],
)  # fmt: skip
def test_what_fits_which_device(name: str, part: str, gib: int, count: int) -> None:
    need: Memory = getattr(_figures(name), part)
    assert need.devices(gib * GIB, doubling=part != "weights") == count


SUITE = """\
suite: large
models: [sdar-1.7b-chat, llada2.1-flash]
algorithms: [base, {name: sft, peft: {r: 64}, dtype: bfloat16, as: lora}, {name: sft, dtype: bfloat16}]
benchmarks: [mini_gsm]
seeds: [0]
train: {data: {mini_gsm: train}, steps: 2, batch_size: 1}
"""


def _rows(text: str, head: str) -> dict[str, list[str]]:
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()
    return {line.split()[0]: line.split() for line in lines if "b-chat" in line or "flash" in line}


def test_plan_for_a_machine_that_is_not_here(invoke: Any) -> None:
    Path("large.yaml").write_text(SUITE, encoding="utf-8")
    answer = invoke("plan", "large.yaml", "--device-memory", "80", "--devices", "2")
    assert answer.code == 0, answer.err
    rows = _rows(answer.out, "GiB of bfloat16 weights")
    assert rows["sdar-1.7b-chat"][1] == "3.8" and rows["sdar-1.7b-chat"][3:] == ["4.8", "30.3", "1", "1", "1"]
    assert rows["llada2.1-flash"][1] == "191.6" and rows["llada2.1-flash"][3:] == ["192.4", "1533.2", "3", "4", "32"]
    refused = answer.out.split("Refused, does not fit:")[1]
    said = "generate llada2.1-flash: weights and states need 191.6 GiB, cuda:0 (80 GiB, not here) has 80.0 GiB; "
    assert said + "needs at least 3 such devices, sharded" in refused
    assert "train llada2.1-flash/lora: weights and states need 192.4 GiB" in refused
    assert "sdar-1.7b-chat" not in refused
    assert "workers: 2 on 80 GiB, not here" in answer.out and "on such devices until" in answer.out


def test_a_smaller_machine_refuses_more(invoke: Any) -> None:
    Path("large.yaml").write_text(SUITE, encoding="utf-8")
    answer = invoke("plan", "large.yaml", "--device-memory", "24")
    refused = answer.out.split("Refused, does not fit:")[1]
    assert "train sdar-1.7b-chat/sft: weights and states need 30.3 GiB" in refused
    assert "needs at least 2 such devices, sharded" in refused and "sdar-1.7b-chat/lora" not in refused


def test_one_layer_that_is_too_large(invoke: Any) -> None:
    Path("large.yaml").write_text(SUITE, encoding="utf-8")
    answer = invoke("plan", "large.yaml", "--device-memory", "1")
    assert "no number of such devices is enough" in answer.out


def test_a_number_of_devices_needs_their_memory(invoke: Any) -> None:
    answer = invoke("plan", "smoke", "--devices", "2")
    assert answer.code == 2 and "--device-memory GIB" in answer.err


def test_sizes_that_are_not_known_here(invoke: Any) -> None:
    text = SUITE.replace("[sdar-1.7b-chat, llada2.1-flash]", "[{name: other, source: owner/other, family: sdar}]")
    Path("other.yaml").write_text(text, encoding="utf-8")
    answer = invoke("plan", "other.yaml", "--device", "cpu")
    assert answer.code == 0, answer.err
    assert "hf download owner/other" in answer.out
    assert next(line.split() for line in answer.out.splitlines() if line.startswith("other "))[2] == "?"


def test_list_models_as_table_and_json(invoke: Any) -> None:
    import json

    lines = invoke("list", "models").out.splitlines()
    assert max(map(len, lines)) <= 125
    shown = next(line for line in lines if line.startswith("llada2.0-mini "))
    assert " ".join(shown.split()) == "llada2.0-mini llada2_moe 16.26 B 1.43 B 30.3 40 no inclusionAI/LLaDA2.0-mini"
    exact = {row["name"]: row for row in json.loads(invoke("list", "models", "--json").out)}
    assert exact["sdar-30b-a3b-chat"]["parameters"] == 30_532_122_624
    assert exact["sdar-30b-a3b-chat"]["active_parameters"] == 3_353_032_704
    assert exact["llada-8b-base"]["mixture"] is False and exact["random-dream"]["here"] is True
    assert invoke("list", "suites", "--json").code == 2
