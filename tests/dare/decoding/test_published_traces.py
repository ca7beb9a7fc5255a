"""Our engine gives the ids and steps that the published samplers gave, alone and inside batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.loading import load

LLADA = (
    "llada_official_g32_b32_s32",
    "llada_official_g32_b8_s32",
    "llada_official_g48_b16_s18",
    "llada_official_g64_b16_s32",
    "llada_official_batch_leftpad",
    "llada_official_eos_plain",
    "fastdllm_llada_nocache_quota_g64_b16_s64",
    "fastdllm_llada_nocache_thr0.7_g64_b32_s64",
    "fastdllm_llada_nocache_thr0.9_g64_b16_s64",
)
SDAR = (
    "sdar_static_b4_s4",
    "sdar_static_b4_s2_capped",
    "sdar_static_b8_s3_quota332",
    "sdar_dynamic_b4_thr0.85",
    "sdar_dynamic_b4_stop",
    "sdar_dynamic_b8_thr0.6",
    "sdar_dynamic_b8_s4_thr0.6_capped",
    "sdar_dynamic_b16_thr0.7",
)


@dataclass(frozen=True)
class Trace:
    """A recorded run with our settings for it."""

    data: dict[str, Any]
    lm: DiffusionLM
    decoder: DecoderConfig

    @property
    def prompts(self) -> list[list[int]]:
        return self.data["prompt_ids"]

    @property
    def stops(self) -> set[int]:
        return set(self.data["settings"].get("stop_ids") or []) if self.is_sdar else {self.data["eos_id"]}

    @property
    def is_sdar(self) -> bool:
        return self.data["family"] == "sdar"


def decoder_of(data: dict[str, Any]) -> DecoderConfig:
    """Map the sampler's arguments to ours."""
    settings = data["settings"]
    if data["family"] == "sdar":
        threshold = settings["confidence_threshold"]
        steps, length = settings["denoising_steps"], settings["gen_length"]
    else:
        threshold = settings.get("threshold")
        steps, length = settings["steps"] // (data["gen_length"] // data["block_length"]), data["gen_length"]
    return DecoderConfig(
        selector="low_confidence" if threshold is None else "threshold",
        selector_options={} if threshold is None else {"threshold": threshold},
        steps_per_block=steps,
        gen_length=length,
        block_length=data["block_length"],
        early_stop=data["family"] == "sdar",  # LLaDA's sampler fills its canvas
    )


@pytest.fixture(scope="module")
def trace(reference) -> Callable[[str], Trace]:
    models: dict[str, DiffusionLM] = {}

    def read(name: str) -> Trace:
        folder = reference / "decoding" / name
        data = json.loads((folder / "case.json").read_text())
        path = Path(folder / data["model"]).resolve()
        if path.name not in models:
            models[path.name] = load(path, device="cpu")
        found = Trace(data, models[path.name], decoder_of(data))
        assert found.lm.mask_token_id == data["mask_id"]
        return found

    return read


def own_steps(data: dict[str, Any]) -> list[list[int]]:
    """The published step map, numbered without the forwards that only fill the cache."""
    number, index = {}, 0
    for call, (kind, *_) in enumerate(data["forwards"]):
        number[call] = index
        index += kind != "store"
    assert index == data.get("nfe_denoise", data["nfe"])
    return [[number[step] for step in row if step >= 0] for row in data["step_map"]]


def check(trace: Trace, found: list[Any]) -> None:
    """Compare generations with the trace; positions behind the last decoded block do not exist here."""
    steps = own_steps(trace.data)
    for row, generation in enumerate(found):
        length = len(generation.token_ids)
        assert generation.token_ids == trace.data["output_ids"][row][:length]
        assert generation.step_map == steps[row]
        assert generation.cost.nfe == trace.data.get("nfe_denoise", trace.data["nfe"])
        assert generation.confidence == pytest.approx(trace.data["commit_prob"][row][:length], abs=1e-4)
        if not trace.stops & set(generation.token_ids):
            expected = (
                trace.data["total_length"] - len(trace.prompts[row]) if trace.is_sdar else trace.data["gen_length"]
            )
            assert length == expected


@pytest.mark.parametrize("name", LLADA + SDAR)
@pytest.mark.parametrize("batch", ["alone", "with others"])
def test_ids_steps_and_calls(trace, monkeypatch, name, batch):
    case = trace(name)
    monkeypatch.setattr(case.lm, "stop_token_ids", case.stops)
    mine = len(case.prompts)
    others = [[3, 1, 4, 1, 5, 9, 2, 6], case.prompts[0][:5], [7], case.prompts[0] * 2] if batch == "with others" else []
    prompts = case.prompts + others
    found = generate(case.lm, prompts, case.decoder, [0] * len(prompts), batch_size=1 if not others else 8)
    check(case, found[:mine])


@pytest.mark.parametrize("name", SDAR)
def test_recomputing_everything_gives_the_same(trace, monkeypatch, name):
    case = trace(name)
    monkeypatch.setattr(case.lm, "stop_token_ids", case.stops)
    config = DecoderConfig(**{**case.decoder.determinants(), "cache": "none"})
    check(case, generate(case.lm, case.prompts, config, [0]))


def test_the_stop_case_stops_early(trace, monkeypatch):
    case = trace("sdar_dynamic_b4_stop")
    monkeypatch.setattr(case.lm, "stop_token_ids", case.stops)
    (found,) = generate(case.lm, case.prompts, case.decoder, [0])
    assert found.finish_reason == "stop"
    assert len(found.token_ids) == 16 < case.data["settings"]["gen_length"]
    assert found.text_ids == found.token_ids[: found.token_ids.index(222)]


def test_a_predicted_mask_is_replaced_by_the_next_best_token(trace):
    # The published sampler commits the mask id here (an edge case it does not handle).
    case = trace("llada_official_mask_predicted")
    (found,) = generate(case.lm, case.prompts, case.decoder, [0])
    assert case.data["mask_id"] in case.data["output_ids"][0] or -1 in case.data["step_map"][0]
    assert case.data["mask_id"] not in found.token_ids
    assert min(found.step_map) >= 0
