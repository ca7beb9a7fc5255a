"""Generate the answers of one checkpoint on one benchmark with one decoder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.generation import Generation
from dare_bench.dare.randomness import stream_seed
from dare_bench.harness.errors import JobError
from dare_bench.harness.jobs.columns import checkpoint_record, evaluation_columns
from dare_bench.results.keys import fingerprint, hard_fields, hard_key
from dare_bench.results.schema import TrainingRun
from dare_bench.suites.benchmarks import registry as benchmark_registry
from dare_bench.suites.benchmarks.base import Benchmark, Row
from dare_bench.suites.prompts import prompt_hash
from sqlalchemy import select

if TYPE_CHECKING:
    from dare_bench.dare.families.base import DiffusionLM
    from dare_bench.harness.jobs.session import Session

#: Rows decoded together when the manifest names no batch size.
BATCH_SIZE = 64
#: Finished rows are stored when there are so many, or after so long: what a killed run has to decode again.
FLUSH_ROWS, FLUSH_SECONDS = 32, 10.0


def run(job: dict[str, Any], session: Session) -> None:
    """Decode what is not stored yet; a queue keeps the batch full, and finished rows are stored as they come."""
    spec, store = job["spec"], session.store
    started = time.monotonic()
    bench = benchmark_registry.get(spec["task"]["name"])
    rows = bench.rows(spec["task"]["split"], data_dir=session.data, limit=spec["task"]["limit"])
    protocol = spec["task"]["protocol"]
    shots = bench.shots(protocol, data_dir=session.data)
    messages = [bench.messages(row, protocol, shots) for row in rows]
    training_id, folder = _checkpoint(spec, session)
    lm = session.load(folder, spec["model"], dtype=spec["dtype"], keep=True)
    decoder = DecoderConfig(**spec["decoder"])
    batch_size = spec["batch_size"] or BATCH_SIZE
    fields = comparability(bench, rows, messages, shots, spec, decoder)
    columns = evaluation_columns(spec) | {
        "training_run_id": training_id,
        "hard_key": hard_key(fields),
        "hard_fields": fields,
        "numerics": _numerics(lm, spec["dtype"], batch_size, session.settings["machine"])
        | {"checkpoint": checkpoint_record(spec["model"])},
        "environment_id": session.settings["environment_id"],
        "log_path": session.log_path(job),
    }
    evaluation_id = store.begin_evaluation(job["fingerprint"], **columns)
    finished = store.finished_sample_ids(evaluation_id)
    texts, prompts = lm.encode_chats(messages)
    waiting = [i for i in range(len(rows)) if rows[i].id not in finished]
    stored, buffer, clock = len(finished), [], time.monotonic()

    def flush() -> None:
        """Store what is finished, in one transaction."""
        nonlocal stored, clock
        if not buffer:
            return
        found = [sample(lm, rows[i], texts[i], generation) for i, generation in buffer]
        store.add_samples(evaluation_id, found, time.monotonic() - clock)
        stored, clock = stored + len(buffer), time.monotonic()
        buffer.clear()
        session.report(stored, len(rows), "")

    def on_finish(place: int, generation: Generation) -> None:
        buffer.append((waiting[place], generation))
        if len(buffer) >= min(batch_size, FLUSH_ROWS) or time.monotonic() - clock > FLUSH_SECONDS:
            flush()

    session.report(stored, len(rows), "")
    _decode(lm, [prompts[i] for i in waiting], [rows[i] for i in waiting], decoder, spec["seed"], batch_size, on_finish)
    flush()
    store.finish_evaluation(evaluation_id, "done", wall_s=time.monotonic() - started)


def _decode(
    lm: DiffusionLM,
    prompts: list[list[int]],
    rows: list[Row],
    decoder: DecoderConfig,
    seed: int | None,
    batch_size: int,
    on_finish: Callable[[int, Generation], None],
) -> None:
    from dare_bench.dare.decoding.dispatch import generate

    seeds = [stream_seed(seed or 0, "decode", row.id, 0) for row in rows]
    generate(lm, prompts, decoder, seeds, batch_size=batch_size, on_finish=on_finish)


def sample(lm: DiffusionLM, row: Row, prompt: str, found: Generation) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of a sample and its trajectory.

    Args:
        lm: for the text of tokens.
        row: the question.
        prompt: as sent, after the chat template.
        found: the answer.
    """
    columns = {
        "sample_id": row.id,
        "prompt": prompt,
        "question": row.question,
        "gold": row.gold,
        "cluster": row.cluster,
        "text": lm.decode(found.text_ids),
        "finish_reason": found.finish_reason,
        **vars(found.cost),
    }
    trajectory = {
        "token_ids": list(found.token_ids),
        "pieces": lm.chat.pieces(found.token_ids),
        "step_map": list(found.step_map),
        "confidence": [round(float(value), 6) for value in found.confidence],
        "convention": found.convention,
        "block_starts": list(found.block_starts),
        "kinds": list(found.kinds),
    }
    return columns, trajectory


def _checkpoint(spec: dict[str, Any], session: Session) -> tuple[int | None, str]:
    """Row of the training run (null for the untrained model) and folder of the weights."""
    if spec["training"] is None:
        return None, session.base_folder(spec["model"])
    found = session.store.checkpoint(spec["training"])
    with session.store.read() as query:
        run_id = query.scalar(select(TrainingRun.id).where(TrainingRun.fingerprint == spec["training"]))
    if found is None or run_id is None:
        raise JobError(f"training run {spec['training'][:16]} has no checkpoint in the database")
    folder = session.runs / found[1]
    if not folder.is_dir():
        raise JobError(f"the checkpoint {folder} is gone; run the suite again to train it anew")
    return run_id, str(folder)


def comparability(
    bench: Benchmark,
    rows: list[Row],
    messages: list[Any],
    shots: list[Row],
    spec: dict[str, Any],
    decoder: DecoderConfig,
) -> dict[str, Any]:
    """Fields of the hard key.

    The prompt is hashed as chat messages, before any chat template: models of different families then share a table,
    each under its own template.
    """
    protocol = bench.protocol(spec["task"]["protocol"])
    scorer = bench.scorer(protocol.id)
    rows_id = spec["rows"]
    return hard_fields(
        dataset={
            "id": rows_id["id"],
            "revision": rows_id.get("revision"),
            "sha256": rows_id.get("sha256"),
            "split": spec["task"]["split"],
            "sample_ids": fingerprint([row.id for row in rows]),
        },
        prompt={
            "protocol": protocol.id,
            "messages": prompt_hash(messages),
            "chat_template": "the checkpoint's own",
            "system": protocol.system,
        },
        few_shot={"count": protocol.few_shot, "ids": [shot.id for shot in shots], "order": "published order"},
        extraction={"scorer": scorer.name, "version": scorer.version},
        decode_budget={"max_new_tokens": decoder.gen_length, "rule": "unbounded"},
        sampling={
            "temperature": decoder.temperature,
            "top_p": decoder.top_p or 1.0,
            "repeats": 1,
            "seeds": "per-sample" if decoder.draws else "fixed",
            "stop": "the checkpoint's end tokens",
        },
        metric={"name": scorer.headline, "k": 1},
    )


def _numerics(lm: DiffusionLM, dtype: str, batch_size: int, machine: str) -> dict[str, Any]:
    import torch
    import transformers

    is_cpu = lm.device.type == "cpu"
    template = str(lm.chat.template if lm.chat else "")
    return {
        "device": lm.device.type,
        "device_name": machine if is_cpu else torch.cuda.get_device_name(lm.device),
        "dtype": dtype,
        "attention": lm.model.config._attn_implementation,
        "engine": "dare-bench",
        "batch_size": batch_size,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads() if is_cpu else None,
        "deterministic": is_cpu,
        "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest(),
    }
