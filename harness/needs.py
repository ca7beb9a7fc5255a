"""Memory of one job, from its cell's model and settings."""

from __future__ import annotations

from dare_bench.dare.algorithms import registry as algorithm_registry
from dare_bench.dare.families import registry as family_registry
from dare_bench.harness import memory
from dare_bench.harness.grid import Cell
from dare_bench.harness.jobs.spec import Job
from dare_bench.harness.memory import Memory

#: Prompt length assumed where the rows are not tokenised yet.
PROMPT_TOKENS = 256
BATCH_SIZE = 64


def job_memory(job: Job, cells: list[Cell]) -> Memory | None:
    """Estimate of a job; null for scoring, and for a model whose sizes are not known here.

    Args:
        job: of the grid.
        cells: of the grid, for the models.
    """
    if job.kind == "score":
        return None
    model = next(cell.model for cell in cells if cell.model.name == job.spec["model"]["name"])
    if not model.config:
        return None
    if job.kind == "train":
        label = job.spec["label"]
        recipe = next(cell.recipe for cell in cells if cell.recipe.label == label and cell.recipe.trains(model))
        needs = algorithm_registry.get(recipe.name, model.family).needs
        answer = (job.spec["rollout"] or {}).get("gen_length") or PROMPT_TOKENS
        tokens = min(PROMPT_TOKENS + answer, recipe.train.max_length)
        return memory.training(model, recipe.train, tokens=tokens, needs_reference=needs.ref == "frozen")
    decoder = job.spec["decoder"]
    family = family_registry.get_family(model.family)
    is_cached = family.attention == "causal" or (family.block_causal and decoder.get("cache") != "none")
    return memory.decoding(
        model,
        dtype=job.spec["dtype"],
        batch=min(job.spec["batch_size"] or BATCH_SIZE, job.spec["n_rows"] or BATCH_SIZE),
        tokens=PROMPT_TOKENS + (decoder["gen_length"] or 0),
        block=decoder.get("block_length"),
        exact_cache=is_cached,
    )
