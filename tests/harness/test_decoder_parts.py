"""Decoders in a manifest: every part by name, value or options; presets; published behaviour; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from dare_bench.dare.decoding import caches, compat, presets
from dare_bench.harness.manifest import load_manifest
from dare_bench.harness.resolve import resolve
from dare_bench.harness.resolve_parts import CACHES, PARTS, known_parts
from dare_bench.harness.resolved import Decoding

TEXT = """suite: t
models: [{model}]
algorithms: [base]
benchmarks: [mini_gsm]
decoders:
  - {decoder}
seeds: [0]
"""


@pytest.fixture
def decode(tmp_path: Path) -> Callable[..., Decoding]:
    """A manifest's only decoder, looked up."""

    def run(fields: str, model: str = "random-llada") -> Decoding:
        path = tmp_path / "m.yaml"
        path.write_text(TEXT.format(model=model, decoder=f"{{name: x, {fields}}}"), encoding="utf-8")
        document, manifest = load_manifest(path, "m.yaml")
        (decoder,) = resolve(document, manifest).decoders
        return decoder

    return run


@pytest.mark.parametrize(
    ("fields", "name", "options"),
    [
        ("selector: sequential", "sequential", {}),
        ("selector: {threshold: 0.9}", "threshold", {"threshold": 0.9}),
        (
            "selector: {threshold: {threshold: 0.9, within_quota: true}}",
            "threshold",
            {"threshold": 0.9, "within_quota": True},
        ),
        ("selector: {threshold: {threshold: 0.9, within_quota: false}}", "threshold", {"threshold": 0.9}),
        ("selector: {threshold: {threshold: 0.7, at_least: 3}}", "threshold", {"threshold": 0.7, "at_least": 3}),
        ("selector: {factor: 1}", "factor", {"factor": 1}),
        ("selector: {hierarchy: 0.9}", "hierarchy", {"threshold": 0.9, "low_threshold": 0.4}),
        (
            "selector: {hierarchy: {threshold: 0.9, low_threshold: 0.6}}",
            "hierarchy",
            {"threshold": 0.9, "low_threshold": 0.6},
        ),
        ("selector: {eb: 0.5}", "eb", {"gamma": 0.5, "order": "entropy"}),
        ("selector: {entropy_bounded: 0.35}", "entropy_bounded", {"threshold": 0.35}),
        ("selector: entropy", "entropy", {}),
        ("selector: {maskgit_plus: 0.3}", "maskgit_plus", {"alg_temp": 0.3}),
        ("selector: origin", "origin", {"eps": 1e-3}),
        ("scheduler: timesteps", "timesteps", {"eps": 1e-3}),
        ("scheduler: {ass: 4}", "ass", {"blocks": 4}),
        ("cache: {vicinity: {after_look: 0}}", "vicinity", {"prefix_look": 16, "after_look": 0, "warmup_steps": 4}),
        ("editor: {token_editing: 0.5}", "token_editing", {"threshold": 0.5, "max_post_steps": 16}),
        ("weighting: credit", "credit", {"alpha": 0.7, "gamma": 0.2, "decay": 0.8}),
        (
            "weighting: {eoser: {schedule: doubling, min_gamma: 0.01}}",
            "eoser",
            {"min_gamma": 0.01, "max_gamma": 1.0, "schedule": "doubling"},
        ),
    ],
)
def test_parts(decode, fields, name, options):
    decoder = decode(fields, "random-sdar" if fields.startswith("editor") else "random-llada")
    part = fields.partition(":")[0]
    assert getattr(decoder.config, part) == name
    assert getattr(decoder.config, f"{part}_options") == options
    assert decoder.given == (part, f"{part}_options")


def test_other_fields(decode):
    decoder = decode(
        "cfg_scale: 1.5, top_p: 0.95, top_k: 6, confidence: filtered, eos_rule: last, early_stop: fill, "
        "selector: {factor: 1}, compat: {unroll: {maximum: 2}, factor_last: }"
    )
    config = decoder.config
    assert (config.cfg_scale, config.top_p, config.top_k) == (1.5, 0.95, 6)
    assert (config.confidence, config.eos_rule, config.early_stop) == ("filtered", "last", "fill")
    assert config.compat == {"unroll": {"maximum": 2, "expected_tpf": 8}, "factor_last": {}}
    quirks = decode("selector: {factor: 1}, cache: dual, compat: [factor_last, extra_forward]").config.compat
    assert quirks == {"factor_last": {}, "extra_forward": {}}


def test_presets_are_overridden_field_by_field(decode):
    decoder = decode("preset: fastdllm_dual, block_length: 16")
    assert decoder.config.selector_options == {"threshold": 0.9} and decoder.config.cache == "dual"
    assert decoder.config.block_length == 16 and "cache" in decoder.given and "preset" not in decoder.given
    other = decode("preset: fastdllm_dual, selector: {factor: 1}")
    assert (other.config.selector, other.config.selector_options) == ("factor", {"factor": 1})
    assert decode("preset: llada_official").given.count("selector_options") == 1


@pytest.mark.parametrize("name", sorted(presets.presets()))
def test_every_preset_names_parts_that_exist(decode, name):
    preset = presets.get(name)
    config = decode(f"preset: {name}", model=f"random-{preset.families[0].replace('_', '-')}").config
    for part in PARTS:
        chosen, options = getattr(config, part), getattr(config, f"{part}_options")
        assert set(options) <= set(known_parts(part)[chosen])
        assert all(known_parts(part)[chosen][option].accepts(value) for option, value in options.items())
    assert set(config.compat) <= set(compat.QUIRKS)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("scheduler: qouta", ["decoders[0].scheduler", "'qouta'", "quota"]),
        ("scheduler: {ass: 0}", ["blocks is 0", "a positive whole number"]),
        ("scheduler: {quota: 3}", ["option of scheduler 'quota' '3'", "quota, without options"]),
        ("scheduler: {ass: 1, quota: 1}", ["names several schedulers"]),
        ("cache: dula", ["decoders[0].cache", "'dula'", "dual"]),
        ("cache: {vicinity: {after_look: -1}}", ["after_look is -1", "a whole number >= 0"]),
        ("editor: token_editing", ["needs threshold, for example {token_editing: 0.5}"]),
        ("weighting: {eoser: {min_gamma: 0}}", ["min_gamma is 0", "a positive number"]),
        ("weighting: {eoser: {gamma: 1}}", ["'gamma'", "min_gamma"]),
        ("selector: {eb: {gamma: 1, order: margin}}", ["order is 'margin'", "entropy or probability"]),
        ("selector: 3", ["decoders[0].selector", "{name: value}"]),
        ("compat: [factor_lst]", ["decoders[0].compat", "factor_lst", "factor_last"]),
        ("compat: {unroll: {maximum: 0}}", ["maximum is 0", "a positive whole number"]),
        ("compat: {unroll: 4}", ["compat 'unroll' is 4", "a mapping of its options"]),
        ("preset: fastdllm_dul", ["decoders[0].preset", "fastdllm_dual"]),
        ("top_p: 0", ["decoders[0].top_p", "0"]),
        ("eos_rule: always", ["decoders[0].eos_rule", "'always'", "never"]),
        ("early_stop: later", ["decoders[0].early_stop", "fill"]),
        ("cache: block", ["cache block needs block-causal attention, not full", "random-llada", "auto"]),
        ("editor: {token_editing: 0.5}", ["decoders[0].editor", "token_editing needs block-causal attention", "none"]),
        ("preset: llada2.1_speed", ["editor token_editing needs block-causal attention", "exclude"]),
        ("compat: [factor_last]", ["decoders[0].compat", "factor_last needs selector factor", "leave it out"]),
        ("compat: [dream_window], cache: dual", ["dream_window needs a family of shifted logits"]),
        ("compat: [separate_store]", ["separate_store needs block-causal attention and the cache block"]),
    ],
)
def test_what_is_refused(decode, fields, said):
    with pytest.raises(Exception) as caught:
        decode(fields)
    for part in said:
        assert part in str(caught.value), str(caught.value)


def test_the_manifest_knows_the_caches_of_the_engine():
    engine = caches._POLICIES
    assert set(CACHES) == {"auto", *engine}
    for name, entry in engine.items():
        assert CACHES[name].attention == entry.attention
        assert {option: spec.default for option, spec in CACHES[name].options.items()} == dict(entry.options)
