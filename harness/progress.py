"""Progress of a run: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from dare_bench.harness.executors.local import Event
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

#: Seconds between two progress lines of one job where there is no terminal.
QUIET_S = 30.0


class RunProgress:
    """Shows events of an executor; use as a context manager.

    Args:
        total: number of jobs.
        console: where to write.
    """

    def __init__(self, total: int, console: Console) -> None:
        self._console = console
        self._total = total
        self._finished = 0
        self._bars: Progress | None = None
        self._all: TaskID | None = None
        self._workers: dict[int, TaskID] = {}
        self._last_line: dict[str, float] = {}

    def __enter__(self) -> RunProgress:
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = Progress(*columns, console=self._console, transient=True)
            self._bars.start()
            self._all = self._bars.add_task("jobs", total=self._total)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, event: Event) -> None:
        """Show one event."""
        if event.what == "started":
            self._started(event)
        elif event.what == "progress":
            self._progress(event)
        else:
            self._ended(event)

    def _started(self, event: Event) -> None:
        if self._bars is None:
            self._last_line[event.job.fingerprint] = time.monotonic()
            return
        task = self._workers.get(event.worker)
        if task is None:
            self._workers[event.worker] = self._bars.add_task(event.job.label, total=None)
        else:
            self._bars.reset(task, description=event.job.label, total=None, completed=0)

    def _progress(self, event: Event) -> None:
        if self._bars is not None:
            self._bars.update(self._workers[event.worker], completed=event.done, total=event.total)
            return
        last = self._last_line.get(event.job.fingerprint, 0.0)
        if time.monotonic() - last > QUIET_S:
            self._last_line[event.job.fingerprint] = time.monotonic()
            self._line(f"      {event.job.label}: {event.done:g} of {event.total:g}")

    def _ended(self, event: Event) -> None:
        self._finished += 1
        if self._bars is not None and self._all is not None:
            self._bars.update(self._all, completed=self._finished)
        count = f"[{self._finished:>{len(str(self._total))}}/{self._total}]"
        if event.what == "done":
            self._line(f"{count} {event.job.label}  {event.wall_s:.1f} s")
        else:
            self._line(f"{count} {event.what.upper()} {event.job.label}: {(event.error or '').splitlines()[0]}")

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
