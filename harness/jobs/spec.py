"""A job as plain data: what a worker process is told. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

KINDS = ("train", "generate", "score")


@dataclass(frozen=True)
class Job:
    """One unit of work with one fingerprint.

    Attributes:
        kind: ``train``, ``generate`` or ``score``.
        fingerprint: of its result.
        label: for progress and messages, for example ``sft-lora seed 1 on tiny-sdar``.
        parents: fingerprints of jobs that must be done first.
        cost: rough work, to start long jobs first; comparable inside one kind.
        affinity: jobs with the same value use the same loaded checkpoint.
        spec: everything the job needs, as JSON values.
    """

    kind: str
    fingerprint: str
    label: str
    parents: tuple[str, ...] = ()
    cost: float = 0.0
    affinity: str = ""
    spec: dict[str, Any] = field(default_factory=dict)

    @property
    def log_name(self) -> str:
        """File name of its log."""
        return f"{self.kind}-{self.fingerprint[:16]}.log"

    def message(self) -> dict[str, Any]:
        """The job as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Context:
    """What all jobs of a run share.

    Attributes:
        db: database URL.
        runs: folder of checkpoints and logs.
        data: folder of local data files, or null.
        environment_id: row of the environment table.
        machine: name of the processor.
        threads: processor threads of one worker.
        ranks: processes of one training job.
        shard: their weights are sharded over them.
    """

    db: str
    runs: str
    data: str | None
    environment_id: int | None
    machine: str = "CPU"
    threads: int | None = 1
    ranks: int = 1
    shard: bool = False
