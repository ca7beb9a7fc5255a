"""Train a checkpoint: one (model, algorithm, recipe, data, seed)."""

from __future__ import annotations

import importlib
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dare_bench.dare.algorithms import registry as algorithm_registry
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.training.config import LoraConfig, TrainConfig, base_dtype
from dare_bench.dare.training.engine import EngineConfig
from dare_bench.harness.errors import JobError
from dare_bench.harness.jobs import group
from dare_bench.harness.jobs.columns import training_columns
from dare_bench.harness.lock import engine_lock
from dare_bench.harness.resolved import source_names
from dare_bench.results.schema import TrainingRun
from dare_bench.results.store import Store
from dare_bench.suites import rewards
from dare_bench.suites.benchmarks import registry as benchmark_registry
from sqlalchemy import select

if TYPE_CHECKING:
    from dare_bench.dare.training.loop import TrainResult
    from dare_bench.harness.jobs.session import Session


def run(job: dict[str, Any], session: Session) -> None:
    """Train to the end, or go on where an earlier attempt stopped.

    Points are stored as they are made; those behind the state from which training resumes are dropped first, so that
    what is stored is the history of the weights.
    """
    spec, store = job["spec"], session.store
    columns = training_columns(spec) | {
        "environment_id": session.settings["environment_id"],
        "log_path": session.log_path(job),
    }
    out_dir = session.runs / "train" / job["fingerprint"][:16]
    if not _is_known(store, job["fingerprint"]) and out_dir.is_dir():
        shutil.rmtree(out_dir)  # states of another database: their training points would be missing in this one
    run_id = store.begin_training(job["fingerprint"], redo=True, **columns)
    config = train_config(spec["train"])

    def on_point(step: int, metrics: dict[str, Any], timing: dict[str, Any]) -> None:
        store.add_training_points(run_id, [(step, metrics, timing)])
        session.report(step, config.steps, "")

    def on_resume(step: int) -> None:
        store.drop_training_points_after(run_id, step)

    with _alone_on_server(spec, session, config.steps):
        started = time.monotonic()
        if int(session.settings.get("ranks") or 1) > 1:
            found = group.train(job, session, out_dir, on_point, on_resume)
        else:
            result = fit(job, session, out_dir, on_point=on_point, on_resume=on_resume)
            found = {"path": result.path, "sha256": result.sha256, "step": result.step, "totals": result.totals}
    path = Path(found["path"]).resolve().relative_to(session.runs.resolve())
    store.finish_training(
        run_id,
        "done",
        totals=found["totals"],
        wall_s=time.monotonic() - started,
        checkpoint=(found["step"], str(path), found["sha256"]),
    )


def fit(
    job: dict[str, Any],
    session: Session,
    out_dir: Path,
    *,
    on_point: Callable[[int, dict[str, Any], dict[str, Any]], None],
    on_resume: Callable[[int], None],
) -> TrainResult:
    """Train in this process, alone or as one of a group.

    Args:
        job: of this kind.
        session: loads the model.
        out_dir: folder of the run.
        on_point, on_resume: as in the training loop.
    """
    spec = job["spec"]
    config = train_config(spec["train"])
    entry = algorithm_registry.get(spec["algorithm"], spec["model"]["family"])
    examples, reward_funcs, reward_weights = _data(spec, session.data, pairs=entry.needs.pairs)
    folder = session.base_folder(spec["model"])
    lm = session.load(folder, spec["model"], dtype=base_dtype(config), keep=False)

    from dare_bench.dare.training.mixture import Phase

    if int(session.settings.get("ranks") or 1) > 1 and lm.family.trainer != "loop":
        raise JobError(
            f"--ranks: models of the family {lm.family.name} are trained in one process; run without --ranks"
        )
    trainer = importlib.import_module(f"dare_bench.dare.training.{lm.family.trainer}")
    algorithm = entry.cls(entry.config_class(**_restore(entry.config_class, spec["settings"])))
    return trainer.train(
        lm,
        algorithm,
        examples,
        config,
        seed=spec["seed"],
        out_dir=out_dir,
        base=_base_name(spec["model"], folder),
        reward_funcs=reward_funcs,
        reward_weights=reward_weights,
        decoder=None if spec["rollout"] is None else DecoderConfig(**spec["rollout"]),
        phases=[Phase(until, mix) for until, mix in spec["phases"]],
        on_point=on_point,
        on_resume=on_resume,
        **_validation(spec, session.data, config),
        **({"sharded": True} if session.settings.get("shard") else {}),
        **_engine(spec, session.runs, out_dir),
    )


def _alone_on_server(spec: dict[str, Any], session: Session, steps: int) -> AbstractContextManager[None]:
    """The server that samples holds the weights of one run: another one of this runs folder waits for it."""
    if not spec.get("engine"):
        return nullcontext()
    url = spec["engine"]["url"]
    return engine_lock(session.runs, url, lambda: session.report(0, steps, f"waiting for {url}"))


def _engine(spec: dict[str, Any], runs: Path, out_dir: Path) -> dict[str, Any]:
    """The server that samples; the manifest says where it sees the runs folder, the loop asks for the run's own."""
    if not spec.get("engine"):
        return {}
    values = dict(spec["engine"])
    if values["shared_folder"] is not None:
        own = out_dir.resolve().relative_to(runs.resolve()).as_posix()
        values["shared_folder"] = f"{values['shared_folder'].rstrip('/')}/{own}/engine"
    return {"engine": EngineConfig(**values)}


def _validation(spec: dict[str, Any], data: Path | None, config: TrainConfig) -> dict[str, Any]:
    """Held-out rows that choose the checkpoint, graded exactly as the benchmark's protocol does."""
    if "validation" not in spec:
        return {}
    from dare_bench.dare.training.validation import Validation

    examples, benchmarks = [], {}
    for name, split, _ in spec["validation"]["data"]:
        bench = benchmarks[name] = benchmark_registry.get(name)
        found = bench.training_examples(split, data_dir=data, limit=config.validation_rows)
        examples += [{**example, "benchmark": name} for example in found]
    functions, _ = rewards.training_functions(list(benchmarks.values()), [])
    return {"validation": Validation(examples, DecoderConfig(**spec["validation"]["decoder"]), functions[0])}


def _is_known(store: Store, fingerprint: str) -> bool:
    with store.read() as session:
        return session.scalar(select(TrainingRun.id).where(TrainingRun.fingerprint == fingerprint)) is not None


def _base_name(model: dict[str, Any], folder: str) -> str:
    """What an adapter's base is called: shipped models by name, others by the folder that was trained from."""
    source = str(model["source"])
    return source if source.startswith("package:") else folder


def train_config(values: dict[str, Any]) -> TrainConfig:
    """Optimisation settings from JSON values."""
    peft = values.get("peft")
    restored = _restore(TrainConfig, values)
    return TrainConfig(**{**restored, "peft": None if peft is None else LoraConfig(**peft)})


def _restore(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples: lists become tuples where the default is one."""
    default = cls()
    return {
        key: tuple(value) if isinstance(getattr(default, key), tuple) and isinstance(value, list) else value
        for key, value in values.items()
    }


def _data(
    spec: dict[str, Any], data: Path | None, *, pairs: bool
) -> tuple[list[dict[str, Any]], list[Any], list[float] | None]:
    """Training examples of all benchmarks (as preference pairs, if asked), and rewards with weights for rollouts."""
    examples: list[dict[str, Any]] = []
    benchmarks: dict[str, Any] = {}
    for (name, split), source in zip(spec["data"], source_names(spec["data"]), strict=True):
        bench = benchmarks[name] = benchmark_registry.get(name)
        found = bench.training_examples(split, data_dir=data, pairs=pairs)
        examples += [{**example, "benchmark": name, "source": source} for example in found]
    if not examples:
        raise JobError(f"no training examples in {spec['data']}")
    if spec["rollout"] is None:
        return examples, [], None
    choices = [rewards.Choice(name, weight, options) for name, weight, options in spec["rewards"]]
    return examples, *rewards.training_functions(list(benchmarks.values()), choices)
