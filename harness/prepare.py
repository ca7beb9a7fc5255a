"""What `run` and `plan` know before the first job: the grid, its jobs, what is done, what is missing, what fits."""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from pathlib import Path

from dare_bench.harness.environment import Device, cpu_count, select_devices
from dare_bench.harness.errors import UserError, nearest
from dare_bench.harness.grid import Cell, expand
from dare_bench.harness.jobs.spec import Job
from dare_bench.harness.manifest import load_manifest
from dare_bench.harness.manifest_yaml import Document
from dare_bench.harness.memory import GIB, Memory
from dare_bench.harness.needs import job_memory
from dare_bench.harness.resolve import resolve
from dare_bench.harness.resolved import Suite
from dare_bench.harness.work import Work, WorkBuilder
from dare_bench.results.store import Store


@dataclass(frozen=True)
class Options:
    """Options shared by the commands that read a suite.

    Attributes:
        suite, db, runs, data, device, jobs, limit, sets: as on the command line.
        device_memory: plan for devices of so many GiB that are not here; null = for those that are.
        devices: how many of them.
        ranks: processes that share one training job, each on a device of its own where there are GPUs.
        shard: they shard the weights instead of copying them.
    """

    suite: str
    db: str
    runs: Path
    data: Path | None = None
    device: str = "auto"
    jobs: int | None = None
    limit: int | None = None
    sets: tuple[str, ...] = ()
    device_memory: float | None = None
    devices: int | None = None
    ranks: int = 1
    shard: bool = False


@dataclass
class Prepared:
    """A suite ready to run.

    Attributes:
        options: of the command line.
        document, suite, cells, work: manifest, names looked up, grid, jobs.
        devices: of the run.
        done: fingerprints whose result is stored.
        pending: jobs that have to run, parents first.
        memory: need of each model's jobs, by job fingerprint.
    """

    options: Options
    document: Document
    suite: Suite
    cells: list[Cell]
    work: Work
    devices: list[Device]
    done: set[str]
    pending: list[Job]
    memory: dict[str, Memory]

    @property
    def smallest_device(self) -> Device:
        """The device every job must fit on."""
        return min(self.devices, key=lambda device: device.total_bytes)

    def missing(self) -> list[str]:
        """What pending jobs need and this machine does not have."""
        wanted = set()
        for job in self.pending:
            if job.kind != "score":
                wanted.add(("model", job.spec["model"]["name"]))
            wanted |= {("data", name) for name in _splits(job)}
        return [text for key, text in self.work.missing.items() if key in wanted]

    def too_large(self) -> list[str]:
        """Pending jobs whose weights and states alone exceed the device."""
        device = self.smallest_device
        found: dict[str, str] = {}
        for job in self.pending:
            need = self.memory.get(job.fingerprint)
            if need is not None and self._share(job, need) > device.total_bytes:
                row = f"{job.kind} {job.spec['model']['name']}" + (
                    f"/{job.spec['label']}" if job.kind == "train" else ""
                )
                found[row] = (
                    f"{row}: weights and states need {need.fixed / GIB:.1f} GiB, "
                    f"{device.name} ({device.label}) has {device.total_bytes / GIB:.1f} GiB; "
                    f"{sharded(need, device, doubling=job.kind == 'train')}"
                )
        return list(found.values())

    def _share(self, job: Job, need: Memory) -> int:
        """Bytes of weights and states on one device."""
        if job.kind == "train" and self.options.shard and self.options.ranks > 1:
            return need.fixed // self.options.ranks + need.layer
        return need.fixed

    def workers(self) -> list[str]:
        """Device of each worker: one per GPU, or `--jobs` of them; on CPU one per core, as far as memory goes.

        A worker whose training jobs run in several processes gets as many GPUs, joined by ``+``.
        """
        ranks = self.options.ranks
        if not self.devices[0].is_cpu:
            names = [device.name for device in self.devices]
            sets = ["+".join(names[begin : begin + ranks]) for begin in range(0, len(names) - ranks + 1, ranks)]
            if not sets:
                raise UserError(
                    f"--ranks {ranks}: each process of a training job takes a GPU of its own, and there are "
                    f"{len(names)} ({', '.join(names)}); allowed: 1 to {len(names)}"
                )
            return [sets[number % len(sets)] for number in range(self.options.jobs or len(sets))]
        if self.options.jobs:
            return ["cpu"] * self.options.jobs
        largest = max(
            (self.memory[job.fingerprint].total for job in self.pending if job.fingerprint in self.memory), default=1
        )
        fitting = int(self.devices[0].free_bytes * 0.85 // (largest + _PROCESS_BYTES))
        return ["cpu"] * max(1, min(cpu_count(), fitting, len(self.pending) or 1) // ranks)


def sharded(need: Memory, device: Device, *, doubling: bool) -> str:
    """How many devices a job that does not fit on one would need."""
    count = need.devices(device.total_bytes, doubling=doubling)
    if count is None:
        return f"one layer alone needs {need.layer / GIB:.1f} GiB: no number of such devices is enough"
    return f"needs at least {count} such devices, sharded (training: --ranks {count} --shard)"


#: A worker process with torch and transformers loaded and no model.
_PROCESS_BYTES = 600 * 2**20


def prepare(options: Options, *, is_offline: bool = False) -> Prepared:
    """Read a suite and find out what has to be done; starts nothing and writes nothing.

    Args:
        options: of the command line.
        is_offline: fetch no benchmark rows from the hub.

    Raises:
        ManifestError: with all problems of the manifest.
        UserError: no such suite or device.
    """
    path = find_suite(options.suite)
    document, manifest = load_manifest(path, options.suite if Path(options.suite).exists() else str(path), options.sets)
    suite = resolve(document, manifest, options.limit)
    cells = expand(suite, document)
    devices = planned_devices(options) or select_devices(options.device)
    dtype = "float32" if devices[0].is_cpu else "bfloat16"
    builder = WorkBuilder(
        data=options.data, dtype=dtype, cache_file=options.runs / "digests.json", is_offline=is_offline
    )
    work = builder.build(cells)
    done, lost = _stored(options, work)
    pending = _pending(work, done, lost)
    memory = {
        job.fingerprint: need for job, need in ((job, job_memory(job, cells)) for job in work.jobs.values()) if need
    }
    return Prepared(options, document, suite, cells, work, devices, done, pending, memory)


def planned_devices(options: Options) -> list[Device]:
    """GPUs of a machine that is not here, for a plan; empty when none is described.

    Raises:
        UserError: a number of devices without their memory.
    """
    if options.device_memory is None:
        if options.devices is not None:
            raise UserError("--devices counts the devices of --device-memory GIB; give both")
        return []
    size = int(options.device_memory * GIB)
    label = f"{options.device_memory:g} GiB, not here"
    return [Device(f"cuda:{number}", label, size, size) for number in range(options.devices or 1)]


def find_suite(name: str) -> Path:
    """A manifest file: a path, or the name of a shipped suite (``smoke``, also ``suites/smoke.yaml`` from any folder).

    Raises:
        UserError: neither; the message lists the shipped suites.
    """
    path = Path(name)
    if path.exists():
        return path
    shipped = shipped_suites()
    plain = path.name.removesuffix(".yaml")
    if name in (plain, f"{plain}.yaml", f"suites/{plain}.yaml") and plain in shipped:
        return shipped[plain]
    near = nearest(plain, shipped)
    hint = f" Did you mean {near!r}?" if near else ""
    raise UserError(
        f"no suite {name!r}: neither a file nor a shipped suite.{hint} Shipped: {', '.join(sorted(shipped))}."
    )


def shipped_suites() -> dict[str, Path]:
    """Suites inside the package, by name."""
    folder = Path(str(importlib.resources.files("dare_bench.suites")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def open_store(db: str, *, create: bool) -> Store | None:
    """Open the database; null when it does not exist and may not be made."""
    if db.startswith("sqlite:///") and not create:
        file = Path(db.removeprefix("sqlite:///"))
        if not file.exists():
            return None
    if db.startswith("sqlite:///"):
        Path(db.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    return Store.open(db, create=create)


def _stored(options: Options, work: Work) -> tuple[set[str], set[str]]:
    """Fingerprints of done jobs, and of training runs whose checkpoint is no longer on disk."""
    store = open_store(options.db, create=False)
    if store is None:
        return set(), set()
    with store:
        kinds = {"train": "training", "generate": "evaluation", "score": "scoring"}
        done: set[str] = set()
        for kind, table in kinds.items():
            done |= store.done(table, [job.fingerprint for job in work.of_kind(kind)])
        lost = set()
        for job in work.of_kind("train"):
            if job.fingerprint in done:
                found = store.checkpoint(job.fingerprint)
                if found is None or not (options.runs / found[1]).is_dir():
                    lost.add(job.fingerprint)
    return done, lost


def _pending(work: Work, done: set[str], lost: set[str]) -> list[Job]:
    """Jobs to run: what is not done, and a training run again when its checkpoint is gone and still needed."""
    wanted = {job.fingerprint for job in work.jobs.values() if job.fingerprint not in done}
    for job in work.of_kind("generate"):
        if job.fingerprint in wanted:
            wanted |= lost.intersection(job.parents)
    return [job for job in work.jobs.values() if job.fingerprint in wanted]


def _splits(job: Job) -> list[str]:
    """``benchmark/split`` of the rows a job reads."""
    task = job.spec.get("task")
    return (
        [f"{name}/{split}" for name, split in job.spec["data"]] if task is None else [f"{task['name']}/{task['split']}"]
    )
