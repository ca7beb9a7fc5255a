"""What a worker keeps between jobs: the open database and the last loaded checkpoint. Imports no torch by itself."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dare_bench.dare.families import random_entries
from dare_bench.dare.families.facts import Overrides
from dare_bench.harness.errors import JobError
from dare_bench.results.store import Store

if TYPE_CHECKING:
    from dare_bench.dare.families.base import DiffusionLM

Report = Callable[[float, float, str], None]


@dataclass
class Session:
    """State of one worker process.

    Attributes:
        settings: as the executor gave them (db, runs, data, environment_id, threads, device, ranks, shard); the processes of
            a training job get a device of their own.
        store: the open database; null in the processes of a group, which only train.
        report: tells the parent how far the job is.
    """

    settings: dict[str, Any]
    store: Store | None = None
    report: Report = lambda done, total, note: None
    _loaded: dict[str, DiffusionLM] = field(default_factory=dict)
    _is_prepared: bool = False

    @property
    def runs(self) -> Path:
        """The runs folder."""
        return Path(self.settings["runs"])

    @property
    def data(self) -> Path | None:
        """Folder of local data files."""
        return Path(self.settings["data"]) if self.settings.get("data") else None

    @property
    def device(self) -> str:
        """torch device of this worker; the first of those it gives to the processes of a training job."""
        return str(self.settings["device"]).split("+")[0]

    def log_path(self, job: dict[str, Any]) -> str:
        """The job's log, relative to the runs folder."""
        return f"logs/{job['log_name']}"

    def base_folder(self, model: dict[str, Any]) -> str:
        """Folder of a model's untrained weights; those of a random checkpoint are made if need be.

        Args:
            model: of a job's spec.
        """
        if not model["source"].startswith(random_entries.PREFIX):
            return str(model["folder"])
        from dare_bench.dare.training.random_checkpoint import ensure

        return str(ensure(model["source"], self.runs.resolve() / "random"))

    def load(self, folder: str | Path, model: dict[str, Any], *, dtype: str, keep: bool) -> DiffusionLM:
        """Load a checkpoint, or hand out the one loaded last.

        Args:
            folder: checkpoint folder.
            model: of a job's spec: family, and facts that differ from the family's.
            dtype: of the weights.
            keep: remember it for the next job; false for a model that will be trained.

        Raises:
            BadCheckpoint: a token that the manifest names is not in the tokenizer.
        """
        self.prepare_torch()
        from dare_bench.dare.families.loading import load

        facts = overrides(model["facts"])
        key = json.dumps([str(folder), dtype, model["family"], model["facts"]], sort_keys=True)
        if keep and key in self._loaded:
            return self._loaded[key]
        self._loaded.clear()
        lm = load(str(folder), family=model["family"], dtype=dtype, device=self.device, overrides=facts)
        if keep:
            self._loaded[key] = lm
        return lm

    def forget(self) -> None:
        """Drop the loaded checkpoint: other processes are about to need the device."""
        if self._loaded:
            import torch

            self._loaded.clear()
            if self.device != "cpu":
                torch.cuda.empty_cache()

    def prepare_torch(self) -> None:
        """Bind this process to its device and threads, once.

        Raises:
            JobError: the device is a GPU that this torch cannot use.
        """
        if self._is_prepared:
            return
        import torch

        if self.device == "cpu":
            torch.set_num_threads(int(self.settings.get("threads") or 1))
        elif not torch.cuda.is_available():
            raise JobError(
                f"device {self.device}: torch {torch.__version__} sees no CUDA device. "
                "Install a CUDA build of torch, or run with --device cpu"
            )
        else:
            torch.cuda.set_device(torch.device(self.device))
        self._is_prepared = True


def overrides(facts: dict[str, Any]) -> Overrides:
    """Facts of a job's spec; JSON knows no tuples."""
    return Overrides(**{name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()})


_SESSIONS: dict[str, Session] = {}


def run_job(job: dict[str, Any], settings: dict[str, Any], report: Report) -> None:
    """Run one job in this process.

    Args:
        job: `Job.message()` with its log name.
        settings: of the worker.
        report: progress.

    Raises:
        Exception: whatever makes the job fail; the parent stores it.
    """
    session = _SESSIONS.get(settings["db"])
    if session is None:
        session = _SESSIONS[settings["db"]] = Session(settings, Store.open(settings["db"], create=False), report)
    session.report = report
    importlib.import_module(f"dare_bench.harness.jobs.{job['kind']}").run(job, session)
    sys.stdout.flush()
