"""Selectors: each rule by hand, properties that all share, and what the table refuses."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch
from dare_bench.dare.decoding import schedulers, selectors
from dare_bench.dare.decoding.options import Option
from dare_bench.dare.families.registry import UnknownName
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

NAMES = [
    "eb", "entropy", "entropy_bounded", "factor", "hierarchy", "low_confidence", "maskgit_plus", "origin", "random",
    "sequential", "threshold", "topk_margin",
]  # fmt: skip
#: Rules that commit exactly what the scheduler asks for.
COUNTED = ("low_confidence", "random", "sequential", "maskgit_plus", "topk_margin", "entropy")
OPTIONS = {
    "eb": {"gamma": 0.5},
    "entropy_bounded": {"threshold": 0.75},
    "factor": {"factor": 1.0},
    "hierarchy": {"threshold": 0.75},
    "threshold": {"threshold": 0.75},
}
VARIANTS = [
    *((name, OPTIONS.get(name, {})) for name in NAMES),
    ("threshold", {"threshold": 0.75, "within_quota": True}),
    ("threshold", {"threshold": 0.75, "at_least": 3}),
    ("maskgit_plus", {"alg_temp": 0.3}),
    ("entropy", {"alg_temp": 1.5}),
    ("eb", {"gamma": 0.5, "order": "probability"}),
]


def table(*lines: str) -> Tensor:
    return torch.tensor([[mark != "." for mark in line] for line in lines])


def view(confidence: list[list[float]], candidates: Tensor, **changes: object) -> selectors.BlockView:
    rows = len(confidence)
    uniforms = torch.tensor([[0.1, 0.9, 0.2, 0.8], [0.5, 0.99, 0.6, 0.1]], dtype=torch.float64)[:rows]
    fields: dict[str, object] = {
        "confidence": torch.tensor(confidence),
        "candidates": candidates,
        "quota": torch.tensor([2, 1])[:rows],
        "guaranteed": torch.ones(rows, dtype=torch.int64),
        "step": torch.zeros(rows, dtype=torch.int64),
        "steps": torch.full((rows,), 4),
        "uniform": lambda: uniforms,
    }
    return selectors.BlockView(**{**fields, **changes})


TWO = ([[0.9, 0.5, 0.7, 0.5], [0.2, 0.9, 0.1, 0.3]], table("xxxx", "x.xx"))


def select(name: str, seen: selectors.BlockView, **options: object) -> Tensor:
    entry, merged = selectors.resolve(name, options)
    return entry.function(seen, **merged)


def check(name: str, wanted: tuple[str, ...], *, options: dict | None = None, **changes: object) -> None:
    assert torch.equal(select(name, view(*TWO, **changes), **(options or {})), table(*wanted))


def test_counted_rules():
    check("low_confidence", ("x.x.", "...x"))
    check("low_confidence", ("....", "x.xx"), quota=torch.tensor([0, 9]))
    check("random", (".x.x", "..x."))
    check("sequential", ("xx..", "x..."))
    check("sequential", ("xxx.", "x.x."), quota=torch.tensor([3, 2]))
    for name in ("maskgit_plus", "topk_margin", "entropy"):
        check(name, ("x.x.", "...x"))
        check(name, ("x.x.", "...x"), options={"alg_temp": 0})


def test_threshold():
    check("threshold", ("xxxx", "...x"), options={"threshold": 0.5})
    check("threshold", ("x.x.", "...x"), options={"threshold": 0.5}, strict=True)
    check("threshold", ("x...", "...x"), options={"threshold": 1})
    # block families: at least the quota; LLaDA2.1: its own number instead
    check("threshold", ("xxx.", "x..x"), options={"threshold": 0.9}, guaranteed=torch.tensor([3, 2]))
    check("threshold", ("x...", "...x"), options={"threshold": 0.9, "at_least": 1}, guaranteed=torch.tensor([3, 2]))
    check("threshold", ("x.x.", "x..x"), options={"threshold": 0.9, "at_least": 2})


def test_threshold_within_the_quota():
    check("threshold", ("x.x.", "...x"), options={"threshold": 0.1, "within_quota": True})
    check("threshold", ("x...", "...x"), options={"threshold": 0.8, "within_quota": True})
    check("threshold", ("x.x.", "x..x"), options={"threshold": 0.2, "within_quota": True}, quota=torch.tensor([2, 3]))


def test_the_published_dinfer_rule_is_a_threshold_with_the_best_always():
    confidence = torch.rand(500, 9, generator=torch.Generator().manual_seed(0))
    candidates = torch.rand(500, 9, generator=torch.Generator().manual_seed(1)) < 0.6
    one = torch.ones(500, dtype=torch.int64)
    found = select("threshold", selectors.BlockView(confidence, candidates, one, one), threshold=0.8)
    best = confidence.masked_fill(~candidates, -1).amax(1, keepdim=True)
    assert torch.equal(found, candidates & (confidence >= (best - 1e-5).clamp(max=0.8)))


def test_factor_and_its_published_form():
    confidence = [[0.9, 0.6, 0.9, 0.9], [0.6, 0.3, 0.0, 0.0]]
    seen = view(confidence, table("xxxx", "xx.."))
    assert torch.equal(select("factor", seen, factor=1.0), table("x.xx", "x..."))
    published = view(confidence, table("xxxx", "xx.."), compat={"factor_last": {}})
    assert torch.equal(select("factor", published, factor=1.0), table("xxxx", "xx.."))


def test_hierarchy_is_strict_whatever_the_family():
    for strict in (False, True):
        seen = view([[0.8, 0.85, 0.1, 0.4], [0.3, 0.2, 0.1, 0.35]], table("xx.x", "x.xx"), strict=strict)
        assert torch.equal(select("hierarchy", seen, threshold=0.8), table(".x..", "...x"))
        assert torch.equal(select("hierarchy", seen, threshold=0.7, low_threshold=0.3), table("xx.x", "...x"))


def test_entropy_rules():
    entropy = torch.tensor([[0.5, 0.125, 0.25, 1.0], [2.0, 3.0, 0.0, 0.0]])
    seen = view([[0.1, 0.2, 0.3, 0.9], [0.4, 0.5, 0.0, 0.0]], table("xxxx", "xx.."), entropy=entropy)
    assert torch.equal(select("entropy_bounded", seen, threshold=0.5), table(".xx.", "x..."))
    assert torch.equal(select("eb", seen, gamma=0.5), table("xxx.", "x..."))
    # by probability: 1.0 | 1.25 | 1.375 less the largest
    assert torch.equal(select("eb", seen, gamma=0.3, order="probability"), table("..xx", ".x.."))


def test_origin_follows_the_time():
    every = table("xxxx", "x.xx")
    share = schedulers.transfer_share(torch.tensor([0, 2]), torch.tensor([4, 4]), 1e-3)
    assert share.tolist() == pytest.approx([0.25, 0.5], abs=1e-3)
    check("origin", ("x.x.", "...x"), step=torch.tensor([0, 2]))
    assert torch.equal(select("origin", view(TWO[0], every, step=torch.tensor([3, 8]))), every)
    assert not select("origin", view(TWO[0], every, step=torch.tensor([0, 0])), eps=0.99).any()


def test_a_draw_comes_from_uniforms_or_from_torch():
    seen = view(*TWO, quota=torch.tensor([1, 1]))
    assert torch.equal(select("maskgit_plus", seen, alg_temp=1e-6), table("x...", "...x"))  # cold: the best
    assert torch.equal(select("maskgit_plus", seen, alg_temp=1e6), table(".x..", "..x."))  # hot: the uniforms alone
    asked: list[Tensor] = []

    def draw(weights: Tensor, counts: Tensor) -> Tensor:
        asked.append(weights)
        return weights == weights.amin(1, keepdim=True)

    select("maskgit_plus", view(*TWO, draw=draw, compat={"torch_rng": {}}), alg_temp=0.3)
    (weights,) = asked
    scores = torch.tensor(TWO[0]).masked_fill(~TWO[1], -torch.inf) / 0.3
    assert weights.dtype == torch.float32 and torch.equal(weights, scores.softmax(-1)) and weights[1, 1] == 0


@st.composite
def views(draw: st.DrawFn) -> selectors.BlockView:
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    # multiples of 1/8: many ties
    eighths = torch.randint(9, (rows, length), generator=generator) / 8
    entropy = torch.randint(9, (rows, length), generator=generator) / 8
    uniforms = torch.rand(rows, length, generator=generator, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    steps = torch.randint(1, 6, (rows,), generator=generator)
    return selectors.BlockView(
        confidence=eighths,
        candidates=torch.rand(rows, length, generator=generator) < draw(st.sampled_from([0.2, 0.7, 1.0])),
        quota=torch.randint(0, 10, (rows,), generator=generator),
        guaranteed=torch.randint(1, 4, (rows,), generator=generator),
        strict=draw(st.booleans()),
        step=torch.randint(0, 7, (rows,), generator=generator),
        steps=steps,
        entropy=entropy,
        uniform=lambda: uniforms,
    )


def part(seen: selectors.BlockView, rows: Tensor) -> selectors.BlockView:
    assert seen.uniform is not None
    uniforms = seen.uniform()[rows]
    tensors = {name: value[rows] for name, value in vars(seen).items() if isinstance(value, Tensor)}
    return dataclasses.replace(seen, **tensors, uniform=lambda: uniforms)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@given(seen=views(), data=st.data())
@settings(deadline=None, max_examples=60)
def test_properties_of_all_rules(name, options, seen, data):
    before = {key: value.clone() for key, value in vars(seen).items() if isinstance(value, Tensor)}
    chosen = select(name, seen, **options)
    assert chosen.dtype == torch.bool and chosen.shape == seen.candidates.shape
    assert not (chosen & ~seen.candidates).any()
    for key, value in before.items():
        assert torch.equal(getattr(seen, key), value), key  # what it looked at is as it was
    masks, counts = seen.candidates.sum(1), chosen.sum(1)
    if name in COUNTED:
        assert torch.equal(counts, torch.minimum(seen.quota, masks))
    elif "at_least" in options:
        assert (counts >= masks.clamp(max=options["at_least"])).all()
    elif "within_quota" in options:
        assert (counts <= seen.quota).all() and (counts >= torch.minimum(seen.quota, masks).clamp(max=1)).all()
    elif name == "threshold":
        assert (counts >= torch.minimum(seen.guaranteed, masks)).all()
    elif name != "origin":
        assert (counts >= masks.clamp(max=1)).all()
    order = torch.tensor(data.draw(st.permutations(range(len(masks)))))
    assert torch.equal(select(name, part(seen, order), **options), chosen[order])
    for row in range(len(masks)):
        assert torch.equal(select(name, part(seen, torch.tensor([row])), **options)[0], chosen[row])


ORDERED = [(name, given) for name, given in VARIANTS if name not in ("random", "origin") and "alg_temp" not in given]


@pytest.mark.parametrize(("name", "options"), ORDERED)
def test_ties_go_to_the_lower_position(name, options):
    seen = view([[0.5] * 4] * 2, table("xxxx", ".xxx"), entropy=torch.full((2, 4), 0.5))
    for row, candidates in zip(select(name, seen, **options).tolist(), seen.candidates.tolist(), strict=True):
        taken = [chosen for chosen, is_candidate in zip(row, candidates, strict=True) if is_candidate]
        assert taken == sorted(taken, reverse=True) and any(taken)


def test_the_table_of_rules():
    found = selectors.selectors()
    assert list(found) == NAMES
    assert all(entry.summary.endswith(".") and entry.name == name for name, entry in found.items())
    assert {name: entry.measure for name, entry in found.items() if entry.measure != "probability"} == {
        "topk_margin": "margin",
        "entropy": "entropy",
    }
    assert [name for name, entry in found.items() if entry.needs_entropy] == ["eb", "entropy_bounded"]
    assert all(isinstance(option, Option) for entry in found.values() for option in entry.options.values())
    with pytest.raises(ValueError, match="selector 'random' is registered twice"):
        selectors.selector("random")(lambda view: view)
    with pytest.raises(ValueError, match="measure is 'confidence'; allowed: probability, margin, entropy"):
        selectors.selector("new", measure="confidence")


def test_options_are_completed():
    assert selectors.resolve("threshold", {"threshold": 1})[1] == {
        "threshold": 1,
        "within_quota": False,
        "at_least": None,
    }
    assert selectors.resolve("hierarchy", {"threshold": 0.9})[1] == {"threshold": 0.9, "low_threshold": 0.4}
    assert selectors.resolve("eb", {"gamma": 0})[1] == {"gamma": 0, "order": "entropy"}
    assert selectors.resolve("entropy", {"alg_temp": None})[1] == {"alg_temp": None}
    assert selectors.resolve("origin", {})[1] == {"eps": 1e-3}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("factor", {}, r"selector 'factor' needs factor, for example \{factor: 1\.0\}"),
        ("hierarchy", {"low_threshold": 0.4}, r"needs threshold, for example \{hierarchy: 0\.9\}"),
        ("factor", {"factor": 0}, r"factor is 0; allowed: a positive number"),
        ("factor", {"factor": float("inf")}, r"factor is inf; allowed: a positive number"),
        (
            "hierarchy",
            {"threshold": 0.9, "low_threshold": -0.1},
            r"low_threshold is -0\.1; allowed: a number in \[0, 1\]",
        ),
        ("threshold", {"threshold": 0.9, "within_quota": 1}, r"within_quota is 1; allowed: true or false"),
        ("threshold", {"threshold": 0.9, "at_least": 0}, r"at_least is 0; allowed: a positive whole number, or null"),
        ("threshold", {"threshold": 0.9, "at_least": 1.5}, r"at_least is 1\.5; allowed"),
        ("entropy", {"alg_temp": -1}, r"alg_temp is -1; allowed: a number >= 0, or null"),
        ("entropy_bounded", {"threshold": 0}, r"threshold is 0; allowed: a positive number \(nats\)"),
        ("eb", {"gamma": -0.1}, r"gamma is -0\.1; allowed: a number >= 0 \(nats\)"),
        ("eb", {"gamma": 0.1, "order": "margin"}, r"order is 'margin'; allowed: entropy or probability"),
        ("origin", {"eps": 1}, r"eps is 1; allowed: a number in \[0, 1\)"),
    ],
)
def test_values_that_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        selectors.resolve(name, options)


def test_unknown_options_come_with_the_nearest():
    with pytest.raises(UnknownName, match=r"option of selector 'hierarchy' 'lowthreshold'\. Did you mean 'low_thr"):
        selectors.resolve("hierarchy", {"lowthreshold": 0.4})
    with pytest.raises(UnknownName, match=r"option of selector 'sequential' 'threshold'\. Known: \(none\)\."):
        selectors.resolve("sequential", {"threshold": 0.4})


def test_tables_of_all_parts_load_without_torch():
    code = (
        "import sys; from dare_bench.dare.decoding import schedulers, selectors, weightings;"
        "selectors.selectors(), schedulers.schedulers(), weightings.weightings();"
        "selectors.resolve('eb', {'gamma': 1}); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
