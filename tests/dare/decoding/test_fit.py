"""What does not fit together, or a family, is named with what fits."""

from __future__ import annotations

import subprocess
import sys

import pytest
from dare_bench.dare.decoding import caches, compat, presets
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.decoding.fit import CACHE_ATTENTION, problems
from dare_bench.dare.families.registry import get_family


def of(family: str, **fields: object) -> list[tuple[str, str]]:
    known = get_family(family)
    return [(found.field, found.said) for found in problems(DecoderConfig(**fields), known.attention, known.shift)]


@pytest.mark.parametrize(
    ("family", "fields", "field", "said"),
    [
        ("llada", {"cache": "block"}, "cache", "cache block needs block-causal attention, not full"),
        ("sdar", {"cache": "dual"}, "cache", "cache dual needs full attention, not block-causal"),
        ("sdar", {"cache": "vicinity"}, "cache", "cache vicinity needs full attention, not block-causal"),
        ("dream", {"editor": "token_editing"}, "editor", "editor token_editing needs block-causal attention, not full"),
        ("sdar", {"scheduler": "ass"}, "scheduler", "scheduler ass has blocks of its own and needs full attention"),
        ("llada", {"compat": {"dream_window": {}}, "cache": "dual"}, "compat", "needs a family of shifted logits"),
        ("dream", {"compat": {"dream_window": {}}}, "compat", "and the cache prefix or dual"),
        ("llada", {"compat": {"extra_forward": {}}}, "compat", "needs a cache that is refreshed"),
        ("sdar", {"compat": {"separate_store": {}}, "cache": "none"}, "compat", "and the cache block"),
        ("llada", {"compat": {"overwrite": {}}}, "compat", "overwrite needs block-causal attention"),
        ("llada", {"compat": {"factor_last": {}}}, "compat", "factor_last needs selector factor"),
        ("sdar", {"compat": {"mask_predicted": {}}}, "compat", "mask_predicted needs full attention and no cache"),
        ("dream", {"compat": {"dream_block_timesteps": {}}}, "compat", "needs scheduler timesteps"),
    ],
)
def test_what_does_not_fit(family, fields, field, said):
    found = of(family, **fields)
    assert [name for name, _ in found] == [field]
    assert said in found[0][1]


def test_the_engine_refuses_the_same(tiny):
    decoder = DecoderConfig(gen_length=4, compat={"overwrite": {}})
    with pytest.raises(ValueError, match=r"compat overwrite needs block-causal attention \(family llada\)"):
        generate(tiny("llada"), [[1, 2]], decoder, [0])


@pytest.mark.parametrize("name", sorted(presets.presets()))
def test_presets_fit_their_families(name):
    entry = presets.get(name)
    for family in entry.families:
        assert of(family, **entry.fields) == []
    assert compat.complete(entry.fields.get("compat", {})) == entry.fields.get("compat", {})


def test_caches_are_those_of_the_engine():
    known = {name: entry.attention for name, entry in caches._POLICIES.items() if entry.attention}
    assert known == CACHE_ATTENTION


def test_presets_and_the_table_need_no_torch():
    code = (
        "import dare_bench.dare.decoding.presets, dare_bench.dare.decoding.fit, sys; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
