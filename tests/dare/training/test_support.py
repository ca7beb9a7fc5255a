"""Every cell of the support matrix, algorithm x family: it trains, and micro-batches do not change what it learns.

``python tests/dare/training/write_support.py`` runs this file and writes down which cells passed;
`dare-bench list algorithms` shows that record.
"""

from __future__ import annotations

import json
import math
from importlib.resources import files

import pytest
import torch
from dare_bench.dare.algorithms.registry import algorithms
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.training.config import LoraConfig, TrainConfig

CELLS = [(name, family) for name, entries in algorithms().items() for entry in entries for family in
         sorted(entry.families) if family != "autoregressive"]  # fmt: skip
#: Adapters are a wrapper of any algorithm: one family of each kind of attention is enough.
ADAPTED = [cell for cell in CELLS if cell[1] in ("llada", "sdar")]


def entry_of(name, family):
    return next(entry for entry in algorithms()[name] if family in entry.families)


def options_of(entry):
    """Small settings: two optimiser steps on one rollout where the algorithm takes several."""
    known = entry.config_class.__dataclass_fields__
    wanted = {"group_size": 4, "inner_iterations": 2, "beta": 0.1, "draws": 2}
    return {name: value for name, value in wanted.items() if name in known}


def trained(tiny, run, examples, name, family, *, out, peft=None, **settings):
    entry = entry_of(name, family)
    lm = tiny(family, block=4)
    before = {key: each.detach().clone() for key, each in lm.model.named_parameters()}
    data = [{**row, "chosen": row["completion"], "rejected": "x" * (1 + i % 4)} for i, row in enumerate(examples)]
    # float64 in the sums that matter, small steps: rounding must not grow into a difference.
    config = TrainConfig(steps=2, batch_size=2, lr=1e-4, weight_decay=0.0, peft=peft, **settings)
    options = {"base": "package:elsewhere"} if peft else {}
    if entry.needs.rollout != "none":
        options["decoder"] = DecoderConfig(gen_length=8, steps_per_block=4 if family != "llada" else 2)
    algorithm = entry.cls(entry.config_class(**options_of(entry)))
    done = run(lm, algorithm, config, data=data, out=out, **options)
    return done, before


@pytest.mark.parametrize(("name", "family"), CELLS, ids=[f"{name}-{family}" for name, family in CELLS])
def test_cell(tiny, run, examples, name, family):
    whole, before = trained(tiny, run, examples, name, family, out="whole")
    assert list(whole.points) == [1, 2]
    assert all(math.isfinite(value) for point in whole.points.values() for value in point.values())
    after = dict(whole.lm.model.named_parameters())
    assert any(not torch.equal(after[key], before[key]) for key in before)
    parts, _ = trained(tiny, run, examples, name, family, out="parts", micro_batch_size=3)
    for step, point in whole.points.items():
        assert parts.points[step]["loss"] == pytest.approx(point["loss"], abs=2e-4, rel=2e-3)
        assert parts.points[step]["grad_norm"] == pytest.approx(point["grad_norm"], abs=2e-4, rel=5e-3)


@pytest.mark.parametrize(("name", "family"), ADAPTED, ids=[f"{name}-{family}" for name, family in ADAPTED])
def test_adapters_learn_and_the_base_stays(tiny, run, examples, name, family):
    done, before = trained(tiny, run, examples, name, family, out="adapted", peft=LoraConfig(r=4))
    assert list(done.points) == [1, 2]
    named = {key.replace(".base_layer", ""): each for key, each in done.lm.model.named_parameters()}
    assert all(torch.equal(named[key], before[key]) for key in before)
    assert any(bool(each.any()) for key, each in named.items() if "lora_B" in key)


def test_the_record_is_that_of_the_registry():
    """A cell that is gone leaves the record; a new one shows as untested until the script has run."""
    record = json.loads((files("dare_bench.dare.algorithms") / "support.json").read_text("utf-8"))
    recorded = {(name, family) for name, families in record["cells"].items() for family in families}
    assert recorded
    assert recorded <= set(CELLS), "run: python tests/dare/training/write_support.py"
