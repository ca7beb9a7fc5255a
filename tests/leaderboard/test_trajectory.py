import re

import pytest
from dare_bench.leaderboard.trajectory import MAX_TOKENS, denoising


def make(steps, **changes):
    base = {
        "pieces": [f" t{i}" for i in range(len(steps))],
        "step_map": steps,
        "confidence": [0.5] * len(steps),
        "block_starts": [0, 2],
        "kinds": ["prefill+denoise", "denoise", "store+denoise"],
    }
    return denoising({**base, **changes})


def test_tokens_carry_their_forward_and_the_map_has_one_cell_each():
    d = make([0, 1, 2, 2])
    assert [t.step for t in d.tokens] == [0, 1, 2, 2]
    assert d.n_forwards == 3
    assert re.findall(r'class="at" data-s="(\d+)"', d.order_map) == ["0", "1", "2", "2"]
    assert d.order_map.count('class="block"') == 1
    assert d.order_map.count('class="kind"') == 2
    assert d.left_to_right == pytest.approx(5 / (6 * 5) ** 0.5)


def test_never_committed_positions_have_no_cell():
    d = make([0, -1, 1, 2])
    assert d.tokens[1].step == -1
    assert re.findall(r'data-s="(-?\d+)"', d.order_map) == ["0", "1", "2"]


def test_odd_data_do_not_break_the_page():
    assert make([], pieces=[], confidence=None, block_starts=[], kinds=[]).order_map == ""
    assert make([0, 0], confidence=None, kinds=["denoise"]).left_to_right is None
    hostile = make([0, 9], pieces=["</script><b>", "\u202e"], confidence=[float("nan"), 7.0], kinds=['"><script>'])
    assert hostile.n_forwards == 10
    assert hostile.tokens[1].piece == "⟦U+202E⟧"
    assert "<script" not in hostile.order_map
    long = make([0] * (MAX_TOKENS + 5), pieces=["x"] * (MAX_TOKENS + 5))
    assert (len(long.tokens), long.n_cut) == (MAX_TOKENS, 5)
