"""Which job next: dependencies, failures, and a short critical path. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Iterable

from dare_bench.harness.jobs.spec import KINDS, Job


class Schedule:
    """Jobs that still have to run.

    Args:
        jobs: to be run; a parent that is not among them is done already.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._waiting = {job.fingerprint: job for job in jobs}
        self._known = dict(self._waiting)
        self._open = set(self._waiting)

    @property
    def is_finished(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._open

    @property
    def n_ready(self) -> int:
        """Number of jobs that could start now."""
        return len(self._ready())

    def _ready(self) -> list[Job]:
        return [job for job in self._waiting.values() if not any(parent in self._open for parent in job.parents)]

    def take(self, affinity: str | None, others: Iterable[str] = ()) -> Job | None:
        """Remove and return the job to start next.

        Training comes first (everything waits for it), long jobs before short ones, so that no long job is left for
        the end. Among generations, one that uses the checkpoint this worker has loaded wins, then one whose
        checkpoint no other worker has loaded.

        Args:
            affinity: of the worker's last job.
            others: affinities of the other workers.

        Returns:
            A job whose parents are done, or null when none is ready.
        """
        ready = self._ready()
        if not ready:
            return None
        busy = set(others)

        def order(job: Job) -> tuple[int, int, float]:
            preference = 0 if job.affinity == affinity else 2 if job.affinity in busy else 1
            return KINDS.index(job.kind), preference if job.kind == "generate" else 0, -job.cost

        job = min(ready, key=order)
        del self._waiting[job.fingerprint]
        return job

    def done(self, fingerprint: str) -> None:
        """Note that a taken job is done."""
        self._open.discard(fingerprint)

    def failed(self, fingerprint: str) -> list[Job]:
        """Note that a taken job failed.

        Returns:
            Jobs that can no longer run because they depend on it, removed from the schedule.
        """
        blocked: list[Job] = []
        lost = {fingerprint}
        changed = True
        while changed:
            found = [job for job in self._waiting.values() if lost.intersection(job.parents)]
            changed = bool(found)
            for job in found:
                del self._waiting[job.fingerprint]
                lost.add(job.fingerprint)
            blocked += found
        self._open -= lost
        return blocked
