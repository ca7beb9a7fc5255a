"""Kill a run at random moments, start it again each time, and compare its database with that of an undisturbed run.

    python tests/harness/kill_test.py --kills 10 --seed 0

Half of the moments lie in training (spread over its points), half in generation (spread over its samples). After each
`kill -9`: no process of the run is left, the lock is free. At the end: every sample, trajectory, score, training point
and checkpoint hash equals that of the undisturbed run; ids and times aside. Exit code 0 = equal.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUITE = """\
suite: kill
models: [{name: m-sdar, path: ../ckpt-sdar}, {name: m-llada, path: ../ckpt-llada}]
algorithms:
  - base
  - {name: sft, lr: 1e-3}
  - {name: d1, steps: 6, batch_size: 2, checkpoint_every: 2}
benchmarks: [{name: mini_gsm, limit: 36}, {name: mini_choice, limit: 20}]
decoders:
  - {name: one, batch_size: 4, gen_length: 24}
  - {name: drawn, temperature: 1.0, batch_size: 4, gen_length: 24}
seeds: [0, 1]
train:
  data: {mini_gsm: train}
  steps: 40
  batch_size: 4
  checkpoint_every: 4
  decoder: {gen_length: 16}
exclude: [{model: m-llada, algorithm: d1}]
"""
#: Columns that differ between two true runs: ids, times, and what was measured with a clock.
IGNORED = {
    "id", "training_run_id", "evaluation_id", "scoring_id", "sample_pk", "environment_id", "started_at", "finished_at",
    "wall_s", "decode_wall_s", "timing", "created_at",
}  # fmt: skip
QUERIES = {
    "training_run": "SELECT t.fingerprint AS key, t.* FROM training_run t",
    "training_point": "SELECT t.fingerprint || '/' || p.step AS key, p.* FROM training_point p"
    " JOIN training_run t ON t.id = p.training_run_id",
    "checkpoint": "SELECT t.fingerprint || '/' || c.step AS key, c.* FROM checkpoint c"
    " JOIN training_run t ON t.id = c.training_run_id",
    "evaluation": "SELECT e.fingerprint AS key, e.* FROM evaluation e",
    "sample": "SELECT e.fingerprint || '/' || s.sample_id || '/' || s.repeat AS key, s.* FROM sample s"
    " JOIN evaluation e ON e.id = s.evaluation_id",
    "trajectory": "SELECT e.fingerprint || '/' || s.sample_id || '/' || s.repeat AS key, t.* FROM trajectory t"
    " JOIN sample s ON s.id = t.sample_pk JOIN evaluation e ON e.id = s.evaluation_id",
    "scoring": "SELECT g.fingerprint AS key, g.* FROM scoring g",
    "score": "SELECT g.fingerprint || '/' || s.sample_id || '/' || s.repeat AS key, c.* FROM score c"
    " JOIN scoring g ON g.id = c.scoring_id JOIN sample s ON s.id = c.sample_pk",
}


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the run in a folder; its output is appended to a file there."""
    with (folder / "output.txt").open("ab") as output:
        command = [
            sys.executable,
            "-m",
            "dare_bench.harness.cli",
            "run",
            "../kill.yaml",
            "--jobs",
            "2",
            "--device",
            "cpu",
        ]
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)


def count(folder: Path, table: str) -> int:
    """Rows of a table, 0 before it exists."""
    file = folder / "runs" / "dare-bench.db"
    if not file.exists():
        return 0
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30)
    try:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def contents(folder: Path) -> dict[str, dict[str, dict[str, object]]]:
    """Everything stored, by table and natural key."""
    connection = sqlite3.connect(folder / "runs" / "dare-bench.db")
    connection.row_factory = sqlite3.Row
    found = {}
    for table, query in QUERIES.items():
        rows = {}
        for row in connection.execute(query):
            values = {name: row[name] for name in row.keys() if name not in IGNORED}  # noqa: SIM118 (rows, not keys)
            if table == "training_run":
                totals = json.loads(values["totals"])
                values["totals"] = {name: value for name, value in totals.items() if not name.endswith("wall_s")}
            rows[row["key"]] = values
        found[table] = rows
    connection.close()
    return found


def family_of(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # it ended while we looked
        if parent == pid:
            found += family_of(int(status.parent.name))
    return found


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: object, limit_s: float, what: str) -> None:
    """Poll a condition; an AssertionError names what did not happen."""
    deadline = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"{what} (after {limit_s:g} s)"
        time.sleep(0.02)


def is_lock_free(folder: Path) -> bool:
    """Whether the run lock can be taken."""
    with (folder / "runs" / "run.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def kill_at(folder: Path, table: str, target: int, extra_s: float) -> bool:
    """Start the run, kill it `extra_s` after `table` has `target` rows; false when it ended before."""
    process = start(folder)
    while process.poll() is None and count(folder, table) < target:
        time.sleep(0.01)
    time.sleep(extra_s)
    if process.poll() is not None:
        return False
    members = family_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(map(is_running, members)), 5, f"processes of the killed run are left: {members}")
    wait_until(lambda: is_lock_free(folder), 5, "the lock is still held")
    return True


def finish(folder: Path) -> float:
    """Run to the end.

    Returns:
        Seconds.
    """
    began = time.monotonic()
    code = start(folder).wait()
    assert code == 0, f"exit code {code}:\n{(folder / 'output.txt').read_text()[-3000:]}"
    return time.monotonic() - began


def compare(straight: Path, killed: Path) -> list[str]:
    """Differences of two databases, in words."""
    expected, found = contents(straight), contents(killed)
    problems = []
    for table, rows in expected.items():
        other = found[table]
        print(f"  {table}: {len(rows)} rows", flush=True)
        for key in sorted(rows.keys() | other.keys()):
            if rows.get(key) != other.get(key):
                problems.append(f"{table} {key}: straight {rows.get(key)}, killed {other.get(key)}")
    return problems


def main() -> int:
    """Run the test.

    Returns:
        Exit code.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="kill-test-") as name:
        root = Path(name)
        maker = Path(__file__).with_name("tiny_checkpoint.py")
        for family in ("sdar", "llada"):
            subprocess.run([sys.executable, str(maker), family, str(root / f"ckpt-{family}")], check=True)
        (root / "kill.yaml").write_text(SUITE, encoding="utf-8")
        straight, killed = root / "straight", root / "killed"
        straight.mkdir()
        killed.mkdir()
        print(f"undisturbed run: {finish(straight):.1f} s", flush=True)
        moments = []
        for table, share in (("training_point", options.kills - options.kills // 2), ("sample", options.kills // 2)):
            total = count(straight, table)
            moments += [(table, target) for target in sorted(draw.sample(range(1, int(total * 0.97)), share))]
        done = 0
        for table, target in moments:
            was_killed = kill_at(killed, table, target, draw.uniform(0, 0.1))
            done += was_killed
            print(f"{'killed' if was_killed else 'ended before the kill'} at {table} >= {target}", flush=True)
        print(f"last run: {finish(killed):.1f} s; {done} kills", flush=True)
        problems = compare(straight, killed)
        for problem in problems[:20]:
            print(f"DIFFERENT {problem[:600]}")
        print("equal" if not problems else f"{len(problems)} differences")
        return 1 if problems or done < options.kills else 0


if __name__ == "__main__":
    sys.exit(main())
