"""Arguments of published samplers as decoders of this installation. Imports no torch.

Each sampler maps to its rule, and to what was published where the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dare_bench.dare.conformance.decoding_cases import Case
from dare_bench.dare.conformance.decoding_expected import leaves_masks
from dare_bench.dare.conformance.layout import BadReference
from dare_bench.dare.decoding import presets
from dare_bench.dare.decoding.config import DecoderConfig


@dataclass(frozen=True)
class Mapped:
    """How a case is replayed.

    Attributes:
        rule: decoder without published quirks.
        compat: what makes it the published one; empty = the rule is what was published.
        unrecorded: why the record does not show the rule; empty = it does, but for wasted forwards.
        stops: stop token ids.
    """

    rule: DecoderConfig
    stops: frozenset[int]
    compat: Mapping[str, Any] = field(default_factory=dict)
    unrecorded: str = ""

    @property
    def published(self) -> DecoderConfig:
        """The decoder with the published quirks."""
        return replace(self.rule, compat=self.compat)


_Mapper = Callable[[Case], tuple[dict[str, Any], dict[str, Any], str]]
_SAMPLERS: dict[tuple[str, str], _Mapper] = {}


def map_case(case: Case) -> Mapped:
    """The decoders of a case.

    Raises:
        BadReference: for a sampler that is not known here, or without an argument that it needs.
    """
    mapper = _SAMPLERS.get(case.sampler)
    if mapper is None:
        known = "; ".join(sorted(" ".join(sampler).strip() for sampler in _SAMPLERS))
        raise BadReference(f"{case.name}: unknown sampler {' '.join(case.sampler).strip()!r}; known: {known}")
    settings, data = case.settings, case.data
    try:
        fields, compat, unrecorded = mapper(case)
    except KeyError as error:
        raise BadReference(f"{case.name}: settings.{error.args[0]} is missing; the sampler needs it") from error
    # SDAR's greedy runs name temperature 1: the best token, its probability at that temperature.
    fields["temperature"] = 0.0 if settings.get("greedy") else settings.get("temperature", 0.0)
    fields |= {"block_length": data["block_length"], "gen_length": settings.get("gen_length", data["gen_length"])}
    if data.get("rng_seed") is not None:
        compat = {**compat, "torch_rng": {}}
        unrecorded = "drawn by another generator"
    given = settings["stop_ids"] or [] if "stop_ids" in settings else [data["eos_id"]]
    stops = frozenset({*given, *([settings["eot_id"]] if "eot_id" in settings else [])})
    return Mapped(DecoderConfig(name=case.name, **fields), stops, compat, unrecorded)


def _sampler(repo: str, file: str = "") -> Callable[[_Mapper], _Mapper]:
    def add(mapper: _Mapper) -> _Mapper:
        _SAMPLERS[(repo, file)] = mapper
        return mapper

    return add


def _fields(preset: str, **changed: Any) -> dict[str, Any]:
    return {**presets.get(preset).fields, **changed}


def _steps_per_block(case: Case) -> int:
    return case.settings["steps"] // (case.data["gen_length"] // case.data["block_length"])


@_sampler("ML-GSAI/LLaDA", "generate.py")
def _llada(case: Case) -> tuple[dict[str, Any], dict[str, Any], str]:
    settings = case.settings
    rules = {"logits_eos_inf": "never", "confidence_eos_eot_inf": "last"}
    fields = _fields(
        "llada_random" if settings["remasking"] == "random" else "llada_official",
        steps_per_block=_steps_per_block(case),
        cfg_scale=settings.get("cfg_scale", 0.0),
        eos_rule=next((rule for name, rule in rules.items() if settings.get(name)), "plain"),
    )
    if leaves_masks(case):
        return fields, {"mask_predicted": {}}, "the mask id was committed"
    return fields, {}, ""


@_sampler("NVlabs/Fast-dLLM", "llada/generate.py")
def _fastdllm(case: Case) -> tuple[dict[str, Any], dict[str, Any], str]:
    settings = case.settings
    cache = "none" if settings["cache"] == "nocache" else settings["cache"]
    compat = {} if cache == "none" else {"extra_forward": {}}
    if settings.get("threshold") is None:
        return _fields("llada_official", cache=cache, steps_per_block=_steps_per_block(case)), compat, ""
    return _fields(f"fastdllm_{cache}", selector_options={"threshold": settings["threshold"]}), compat, ""


@_sampler("inclusionAI/dInfer", "python/dinfer/decoding/generate_fastdllm.py")
def _fastdllm_copy(case: Case) -> tuple[dict[str, Any], dict[str, Any], str]:
    settings = case.settings
    cache = "none" if settings["cache"] == "nocache" else settings["cache"]
    fields = _fields(f"fastdllm_{cache}", early_stop="fill" if settings.get("early_stop") else False)
    if "factor" not in settings:
        return {**fields, "selector_options": {"threshold": settings["threshold"]}}, {}, ""
    fields |= {"selector": "factor", "selector_options": {"factor": settings["factor"]}}
    return fields, {} if "rule" in settings else {"factor_last": {}}, ""


@_sampler("NVlabs/Fast-dLLM", "dream/model/generation_utils.py")
def _dream_threshold(case: Case) -> tuple[dict[str, Any], dict[str, Any], str]:
    settings = case.settings
    options = {"threshold": settings["threshold"], "within_quota": True}
    return _fields("fastdllm_dream_none", selector_options=options, steps_per_block=settings["steps"]), {}, ""


@_sampler("NVlabs/Fast-dLLM", "dream/model/generation_utils_block.py")
def _dream_blocks(case: Case) -> tuple[dict[str, Any], dict[str, Any], str]:
    settings = case.settings
    compat: dict[str, Any] = {"dream_window": {}}
    fields = _fields(f"fastdllm_dream_{settings['cache']}", compat={}, steps_per_block=_steps_per_block(case))
    if settings["alg"] == "confidence_threshold":
        fields["selector_options"] = {"threshold": settings["threshold"]}
    else:
        compat["dream_block_timesteps"] = {}
        fields |= {"selector": settings["alg"], "selector_options": {}, "scheduler": "timesteps"}
    return fields, compat, "the refreshing forward commits the first position of a block whatever its rank"


@_sampler("Dream-org/Dream-v0-Instruct-7B")
def _dream(case: Case) -> tuple[dict[str, Any], dict[str, Any], str]:
    settings = case.settings
    alg_temp = settings.get("alg_temp")
    fields = _fields(
        "dream_official",
        selector=settings["alg"],
        selector_options={} if alg_temp is None else {"alg_temp": alg_temp},
        scheduler_options={"eps": settings["eps"]},
        steps_per_block=settings["steps"],
        top_p=settings.get("top_p"),
        top_k=settings.get("top_k"),
    )
    return fields, {}, ""


@_sampler("JetAstra/SDAR", "generate.py")
def _sdar(case: Case) -> tuple[dict[str, Any], dict[str, Any], str]:
    settings = case.settings
    named = {
        "low_confidence_static": "sdar_static",
        "low_confidence_dynamic": "sdar_dynamic",
        "sequential": "sdar_sequential",
        "entropy_bounded": "sdar_entropy_bounded",
    }
    fields = _fields(named[settings["remasking_strategy"]], steps_per_block=settings["denoising_steps"])
    if fields["selector"] == "threshold":
        fields["selector_options"] = {"threshold": settings["confidence_threshold"]}
    elif fields["selector"] == "entropy_bounded":
        fields["selector_options"] = {"threshold": settings["eb_threshold"]}
    compat: dict[str, Any] = {"separate_store": {}}
    return fields, {**compat, "overwrite": {}} if case.data.get("overwrites") else compat, ""


def _llada2(case: Case) -> tuple[dict[str, Any], dict[str, Any], str]:
    settings = case.settings
    early = bool(settings.get("eos_early_stop"))
    if "editing_threshold" in settings:
        fields = _fields(
            "llada2.1_quality",
            selector_options={"threshold": settings["threshold"], "at_least": settings.get("num_to_transfer", 1)},
            editor_options={"threshold": settings["editing_threshold"], "max_post_steps": settings["max_post_steps"]},
            early_stop=early,
        )
        return fields, {}, ""
    steps = min(settings["steps"], settings["gen_length"] // settings.get("minimal_topk", 1))
    fields = _fields(
        "llada2.0",
        selector_options={"threshold": settings["threshold"]},
        steps_per_block=steps,
        early_stop="now" if early else True,
    )
    return fields, {}, ""


_sampler("inclusionAI/LLaDA2.0-mini")(_llada2)
_sampler("yjyddq/DARE")(_llada2)


@_sampler("inclusionAI/dInfer", "python/dinfer/decoding/generate_uniform.py")
def _dinfer(case: Case) -> tuple[dict[str, Any], dict[str, Any], str]:
    settings = case.settings
    named = {
        "ThresholdParallelDecoder": "dinfer_threshold",
        "CreditThresholdParallelDecoder": "dinfer_credit",
        "HierarchyDecoder": "dinfer_hierarchy",
    }
    fields = _fields(named[settings["decoder"]], cache=settings["cache"] or "none", early_stop=settings["early_stop"])
    fields["selector_options"] = {
        name: settings[name] for name in ("threshold", "low_threshold") if settings.get(name) is not None
    }
    if fields.get("weighting") == "credit":
        names = {"alpha": "credit_alpha", "gamma": "boost_gamma", "decay": "decay_beta"}
        fields["weighting_options"] = {ours: settings[theirs] for ours, theirs in names.items()}
    compat: dict[str, Any] = {} if settings["cache"] is None else {"extra_forward": {}}
    if "prefix_look" in settings:
        names = ("prefix_look", "after_look", "warmup_steps")
        fields |= {"cache": "vicinity", "cache_options": {name: settings[name] for name in names}}
    if settings["maximum_unroll"] > 1:
        compat["unroll"] = {"maximum": settings["maximum_unroll"], "expected_tpf": settings["expected_tpf"]}
    return fields, compat, ""


@_sampler("yjyddq/EOSER-ASS-RL", "eval/generate.py")
def _eoser_ass(case: Case) -> tuple[dict[str, Any], dict[str, Any], str]:
    settings = case.settings
    fields = _fields("ass" if "block_num" in settings else "eoser")
    if "block_num" in settings:
        fields["scheduler_options"] = {"blocks": settings["block_num"]}
    else:
        fields["steps_per_block"] = _steps_per_block(case)
    if "eos_min_gamma" in settings:
        options: dict[str, Any] = {"min_gamma": settings["eos_min_gamma"], "max_gamma": settings["eos_max_gamma"]}
        if "block_num" in settings:
            options["schedule"] = "doubling"
        fields |= {"weighting": "eoser", "weighting_options": options}
    return fields, {}, ""
