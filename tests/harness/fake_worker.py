"""A worker whose jobs do what their spec says; run as a script by the executor tests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dare_bench.harness.executors.worker import main


def run(job: dict[str, Any], settings: dict[str, Any], report: Callable[[float, float, str], None]) -> None:
    """Sleep, print, fail or die, and note start and end in a file."""
    spec = job["spec"]
    notes = Path(settings["runs"]) / "notes.txt"
    with notes.open("a") as stream:
        stream.write(f"{os.getpid()} {job['fingerprint']}\n")
    print("said by the job", flush=True)
    report(1, 2, "half")
    time.sleep(spec.get("sleep", 0))
    if "fail" in spec:
        raise ValueError(spec["fail"])
    if "die" in spec:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(run)
