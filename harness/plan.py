"""The plan of a suite as text."""

from __future__ import annotations

from collections import Counter

from dare_bench.dare.training.config import LoraConfig
from dare_bench.harness.errors import shorten
from dare_bench.harness.jobs.spec import KINDS, Job
from dare_bench.harness.memory import GIB, Memory, figures, parameters
from dare_bench.harness.prepare import Prepared
from dare_bench.harness.resolved import Model
from dare_bench.harness.table import text_table
from dare_bench.harness.work import PlannedCell

#: Cells listed one by one; a larger grid is summarised per model and algorithm.
LISTED_CELLS = 120
UNKNOWN = "?"


def render(prepared: Prepared) -> str:
    """Cells, jobs, memory and what is missing, as text.

    Args:
        prepared: from `prepare`.
    """
    suite, work = prepared.suite, prepared.work
    parts = [
        f"suite {suite.name}: {len(work.cells)} cells = {len(suite.models)} models × {_labels(prepared)} algorithms × "
        f"{len(suite.tasks)} benchmarks × {len(suite.decoders)} decoders × {len(suite.seeds)} seeds"
        + (f", {_product(prepared) - len(work.cells)} excluded" if suite.exclude else ""),
        _models(prepared),
        _memory(prepared),
        _figures(prepared),
        _cells(prepared),
        _jobs(prepared),
    ]
    missing, too_large = prepared.missing(), prepared.too_large()
    if missing:
        parts.append("Not on this machine:\n" + "\n".join(f"  - {text}" for text in missing))
    if too_large:
        parts.append("Refused, does not fit:\n" + "\n".join(f"  - {text}" for text in too_large))
    if missing or too_large:
        where = "here" if prepared.options.device_memory is None else "on such devices"
        parts.append(f"`dare-bench run` will refuse this suite {where} until that is resolved.")
    return "\n\n".join(parts)


def _product(prepared: Prepared) -> int:
    suite = prepared.suite
    return len(suite.models) * _labels(prepared) * len(suite.tasks) * len(suite.decoders) * len(suite.seeds)


def _labels(prepared: Prepared) -> int:
    return len({recipe.label for recipe in prepared.suite.recipes})


def _models(prepared: Prepared) -> str:
    rows = []
    for model in prepared.suite.models:
        found = prepared.work.weights.get(model.name)
        here = "excluded" if found is None else "not here" if found.missing else "here"
        count = parameters(model)
        source = model.source + (f" @ {model.revision}" if model.revision else "")
        rows.append([model.name, model.family, UNKNOWN if count is None else f"{count:,}", here, source])
    table = text_table(["model", "family", "parameters", "weights", "source"], rows)
    return "\n".join([table, *(line for model in prepared.suite.models for line in _facts(model))])


def _facts(model: Model) -> list[str]:
    """What is peculiar to a model: facts that the manifest gives, and the decoder settings it has by default."""
    given = {key: value for key, value in model.overrides.values().items() if key != "decoder"}
    lines = []
    if given:
        lines.append(f"given for {model.name}: " + "; ".join(f"{key} {shorten(value)}" for key, value in given.items()))
    if model.default_decoder:
        settings = "; ".join(f"{key} {shorten(value)}" for key, value in model.default_decoder.items())
        lines.append(f"decoders on {model.name}, where they leave it out: {settings}")
    return lines


def _memory(prepared: Prepared) -> str:
    device = prepared.smallest_device
    largest: dict[tuple[str, str], Memory] = {}
    for job in prepared.work.jobs.values():
        need = prepared.memory.get(job.fingerprint)
        if need is not None:
            key = (job.spec["model"]["name"], f"train {job.spec['label']}" if job.kind == "train" else "decode")
            known = largest.get(key)
            largest[key] = need if known is None or need.total > known.total else known
    rows = []
    for (model, work), need in largest.items():
        if need.fixed > device.total_bytes:
            verdict = "REFUSED"
        else:
            verdict = "tight" if need.total > device.free_bytes else "fits"
        rows.append([model, work, _gib(need.fixed), _gib(need.total), verdict])
    head = (
        f"memory on {device.name} ({device.label}): {_gib(device.total_bytes)} GiB, "
        f"{_gib(device.free_bytes)} GiB free; needed per worker process:"
    )
    return head + "\n" + text_table(["model", "job", "weights+state GiB", "estimate GiB", ""], rows)


def _figures(prepared: Prepared) -> str:
    """Per model: what weights, adapters and full training take, and how many devices that is."""
    suite, device = prepared.suite, prepared.smallest_device
    adapters = [recipe.train.peft for recipe in suite.recipes if recipe.train.peft] or [LoraConfig()]
    widest = max(adapters, key=lambda peft: (peft.experts, peft.r))
    decoding: dict[str, Memory] = {}
    for job in prepared.work.of_kind("generate"):
        need, name = prepared.memory.get(job.fingerprint), job.spec["model"]["name"]
        if need is not None and (name not in decoding or need.total > decoding[name].total):
            decoding[name] = need
    rows = []
    for model in suite.models:
        found = figures(model, r=widest.r, experts=widest.experts)
        if found is None:
            rows.append([model.name, *[UNKNOWN] * 7])
            continue
        states = (found.weights, found.lora, found.full)
        counts = [need.devices(device.total_bytes, doubling=need is not found.weights) for need in states]
        inference = _gib(decoding[model.name].total) if model.name in decoding else "-"
        sizes = [_gib(found.weights.fixed), inference, _gib(found.lora.fixed), _gib(found.full.fixed)]
        rows.append([model.name, *sizes, *(str(count or "none") for count in counts)])
    lora = f"LoRA r={widest.r}" + (" with experts" if widest.experts else "")
    head = (
        "GiB of bfloat16 weights, of decoding as in this suite, and of weights with training states; then how many\n"
        f"devices of {_gib(device.total_bytes)} GiB hold the weights, or train with adapters or in full, sharded:"
    )
    columns = ["model", "weights", "decoding", lora, "full", "devices", "LoRA", "full"]
    return head + "\n" + text_table(columns, rows)


def _gib(value: int) -> str:
    return f"{value / GIB:.1f}" if value >= GIB / 10 else f"{value / GIB:.3f}"


def _cells(prepared: Prepared) -> str:
    cells = prepared.work.cells
    if len(cells) <= LISTED_CELLS:
        return text_table(["cell", "state"], [[cell.cell.name, _state(prepared, cell)] for cell in cells])
    counts = Counter((cell.cell.model.name, cell.cell.recipe.label, _state(prepared, cell)) for cell in cells)
    rows = [[model, label, state, str(count)] for (model, label, state), count in counts.items()]
    return text_table(["model", "algorithm", "state", "cells"], rows)


def _state(prepared: Prepared, cell: PlannedCell) -> str:
    if cell.scoring in prepared.done:
        return "done"
    if cell.evaluation in prepared.done:
        return "to score"
    if cell.train is None or cell.train in prepared.done:
        return "to generate"
    return "to train"


def _jobs(prepared: Prepared) -> str:
    pending = {job.fingerprint for job in prepared.pending}
    rows = []
    for kind in KINDS:
        jobs: list[Job] = prepared.work.of_kind(kind)
        todo = sum(job.fingerprint in pending for job in jobs)
        rows.append([kind, str(len(jobs)), str(len(jobs) - todo), str(todo)])
    count = len(prepared.workers())
    return text_table(["jobs", "all", "stored", "to do"], rows) + f"\nworkers: {count} on {prepared.devices[0].label}"
