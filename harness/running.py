"""Run a prepared suite: lock, environment, executor, and what is stored about the run itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from dare_bench.harness.errors import UserError
from dare_bench.harness.executors.local import Event, LocalExecutor
from dare_bench.harness.fingerprint import train_values
from dare_bench.harness.jobs.failures import store_failure
from dare_bench.harness.jobs.spec import Context, Job
from dare_bench.harness.lock import run_lock
from dare_bench.harness.memory import GIB
from dare_bench.harness.prepare import Options, Prepared, open_store, prepare
from dare_bench.harness.progress import RunProgress
from dare_bench.harness.resolved import Model, Recipe
from dare_bench.harness.settings import plain
from dare_bench.results.keys import fingerprint
from dare_bench.results.store import Store
from rich.console import Console


def run_suite(options: Options, command_line: str, console: Console) -> tuple[Prepared, dict[str, str]]:
    """Run what is not done.

    Args:
        options: of the command line.
        command_line: stored with the run.
        console: progress goes here.

    Returns:
        The prepared suite, and label -> error of every job that failed or was blocked.

    Raises:
        UserError: something is missing on this machine; nothing has been written.
        LockHeld: another run is at work.
    """
    prepared = prepare(options)
    if not prepared.pending and _is_recorded(prepared):
        return prepared, {}
    refuse_impossible(prepared, console)
    with run_lock(options.runs, options.db, command_line) as descriptors:
        prepared = prepare(options)  # another run may have ended while this one waited
        store = open_store(options.db, create=True)
        assert store is not None
        with store:
            return prepared, _run_locked(prepared, store, command_line, console, descriptors)


def refuse_impossible(prepared: Prepared, console: Console) -> None:
    """Stop before anything is written when a pending job cannot run on this machine.

    Raises:
        UserError: with everything that is missing or too large.
    """
    reasons = [*prepared.missing(), *prepared.too_large()]
    if reasons:
        todo = len(prepared.pending)
        raise UserError(
            f"suite {prepared.suite.name} cannot run here ({todo} jobs to do, nothing was started or written):\n"
            + "\n".join(f"  - {reason}" for reason in reasons)
        )
    device = prepared.smallest_device
    tight = [need.total for job in prepared.pending if (need := prepared.memory.get(job.fingerprint))]
    if tight and max(tight) > device.free_bytes:
        console.print(
            f"warning: the largest job is estimated at {max(tight) / GIB:.1f} GiB, {device.name} has "
            f"{device.free_bytes / GIB:.1f} GiB free; a smaller batch_size or micro_batch_size lowers it",
            highlight=False,
        )


def _run_locked(
    prepared: Prepared, store: Store, command_line: str, console: Console, descriptors: tuple[int, ...]
) -> dict[str, str]:
    from dare_bench.results.provenance import environment

    facts = environment()
    environment_id = store.environment(facts)
    options = prepared.options
    if options.db.startswith("sqlite"):  # a database server may serve other machines, whose runs no lock here excludes
        store.interrupted(mark=True)
    suite = prepared.suite
    columns = [cell.columns() for cell in prepared.work.cells]
    run_id = store.begin_suite(
        suite.name, prepared.document.text, resolved_manifest(prepared), command_line, environment_id, columns
    )
    context = Context(
        db=options.db,
        runs=str(options.runs),
        data=None if options.data is None else str(options.data),
        environment_id=environment_id,
        machine=str(facts["cpu"]["model"] or "CPU"),
        threads=1 if prepared.devices[0].is_cpu else None,
        ranks=options.ranks,
        shard=options.shard,
    )
    failures: dict[str, str] = {}
    with RunProgress(len(prepared.pending), console) as progress:
        on_event = _recorder(prepared, store, environment_id, failures, progress)
        LocalExecutor(prepared.workers(), context, on_event, inherit=descriptors).run(prepared.pending)
    store.finish_suite(run_id, "failed" if failures else "done")
    return failures


def _recorder(
    prepared: Prepared, store: Store, environment_id: int, failures: dict[str, str], progress: RunProgress
) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        if event.what in ("failed", "blocked"):
            error = event.error or "no message"
            log = prepared.options.runs / log_path(event.job)
            failures[event.job.label] = f"{error}\n    log: {log}" if event.what == "failed" else error
            store_failure(store, event.job, error, environment_id)
        progress.show(event)

    return on_event


def log_path(job: Job) -> str:
    """The job's log, relative to the runs folder."""
    return f"logs/{job.log_name}"


def resolved_manifest(prepared: Prepared) -> dict[str, object]:
    """The suite with every default, as JSON values: what two runs must share to be the same run."""
    suite = prepared.suite
    return {
        "suite": suite.name,
        "description": suite.description,
        "models": [_model(model) for model in suite.models],
        "algorithms": [_recipe(recipe) for recipe in suite.recipes],
        "benchmarks": [plain(task) for task in suite.tasks],
        "decoders": [{"config": plain(each.config), "batch_size": each.batch_size} for each in suite.decoders],
        "seeds": list(suite.seeds),
        "exclude": [{key: list(value) for key, value in rule.items()} for rule in suite.exclude],
    }


def _model(model: Model) -> dict[str, object]:
    facts = model.overrides.values()
    fields = {key: value for key, value in asdict(model).items() if key not in ("source", "overrides")}
    return fields | ({"facts": facts} if facts else {})


def _recipe(recipe: Recipe) -> dict[str, object]:
    rollout = None if recipe.rollout is None else plain(recipe.rollout.config)
    return plain(recipe) | {"rollout": rollout, "train": train_values(recipe.train)}


def _is_recorded(prepared: Prepared) -> bool:
    """Whether the newest run of this very suite is done and has these cells: then nothing needs to be written."""
    store = open_store(prepared.options.db, create=False)
    if store is None:
        return False
    with store:
        newest = store.latest_suite(prepared.suite.name, fingerprint(resolved_manifest(prepared)))
        if newest is None or newest.status != "done":
            return False
        stored = {(cell.name, cell.scoring_fingerprint) for cell in newest.cells}
    return stored == {(cell.cell.name, cell.scoring) for cell in prepared.work.cells}
