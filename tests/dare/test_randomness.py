"""Seeds and uniforms: reproducible everywhere, one stream per row, nothing shared between rows."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from dare_bench.dare.lazy import lazy_import
from dare_bench.dare.randomness import stream_seed, uniform
from hypothesis import given, settings
from hypothesis import strategies as st

WORD = 1 << 64
SEEDS = st.integers(min_value=0, max_value=2**63 - 1)


def splitmix(seed: int, counter: int) -> float:
    """Reference with Python integers."""
    z = (seed * 0xBF58476D1CE4E5B9 + counter * 0x9E3779B97F4A7C15) % WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WORD
    z ^= z >> 31
    return ((z >> 11) + 0.5) * 2.0**-53


@settings(deadline=None)
@given(st.lists(SEEDS, min_size=1, max_size=5), st.integers(1, 9))
def test_equals_the_integer_reference(seeds, count):
    assert uniform(seeds, count).tolist() == [[splitmix(seed, i + 1) for i in range(count)] for seed in seeds]


@settings(deadline=None)
@given(st.lists(SEEDS, min_size=2, max_size=6, unique=True), st.randoms())
def test_a_row_depends_on_its_seed_only(seeds, random):
    alone = {seed: uniform([seed], 7)[0].tolist() for seed in seeds}
    random.shuffle(seeds)
    assert uniform(seeds, 7).tolist() == [alone[seed] for seed in seeds]


def test_a_longer_row_continues_a_shorter_one_and_shapes_are_views():
    assert uniform([5, 9], 3).tolist() == uniform([5, 9], 8)[:, :3].tolist()
    assert uniform([5, 9], 2, 4).reshape(2, 8).tolist() == uniform([5, 9], 8).tolist()
    assert uniform([5], 2, 4).shape == (1, 2, 4)
    assert uniform([5], 2).dtype == torch.float64


@pytest.mark.parametrize("spacing", [1, 0x9E3779B1, 0x85EBCA77C2B2])
def test_rows_of_neighbouring_seeds_are_uniform_and_uncorrelated(spacing):
    # 0x9E.. and 0x85.. are the steps between positions and forwards of one sample in the decoding engine.
    u = uniform([stream_seed("row") + spacing * row for row in range(1000)], 200)
    assert float(u.min()) > 0 and float(u.max()) < 1
    n = u.numel()
    assert abs(float(u.mean()) - 0.5) < 4 * (1 / 12 / n) ** 0.5
    assert abs(float((u - 0.5).square().mean()) - 1 / 12) < 4 * (1 / 180 / n) ** 0.5
    centred = (u - 0.5) * 12**0.5
    for other in (centred[1:] * centred[:-1], centred[:, 1:] * centred[:, :-1], centred[1:, 1:] * centred[:-1, :-1]):
        assert abs(float(other.mean())) < 4 / other.numel() ** 0.5
    assert u.flatten().unique().numel() == n


def test_streams_of_a_sample_do_not_overlap():
    # Row streams are windows of one sequence: those of two (position, forward) pairs may not be shifts of each other.
    inverse = pow(0x9E3779B97F4A7C15, -1, WORD)
    reach = 1 << 20  # wider than any vocabulary
    for place in range(-512, 513, 7):
        for forward in range(-512, 513, 7):
            if place or forward:
                shift = (place * 0x9E3779B1 + forward * 0x85EBCA77C2B2) * 0xBF58476D1CE4E5B9 * inverse % WORD
                assert reach < shift < WORD - reach


def test_stream_seed_is_stable_and_separates_types_and_order():
    assert stream_seed(7, "mask", 3, "a") == 1666823283351690730  # stored runs are resumed by these
    parts = [(1,), ("1",), (1, 2), (2, 1), (12,), ("1", 2)]
    seeds = {stream_seed(*names) for names in parts}
    assert len(seeds) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_modules_load_without_torch():
    code = "import sys, dare_bench.dare.lazy, dare_bench.dare.randomness; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_lazy_module_imports_at_first_use_only():
    module = lazy_import("dare_bench.no_such_module")
    assert not hasattr(module, "__wrapped__")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        module.anything()
